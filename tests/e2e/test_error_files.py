"""What ranks say of their end in their error files, as torch's `@record` writes them, is part of the incident."""

import importlib.util
import re

import pytest

from tests.e2e.jobs import finished
from tests.e2e.supd import Supd

ONCE = "[restart]\nmax_restarts = 0"


def test_what_a_rank_raised_is_in_its_incident_with_the_place_and_the_file(supd: Supd) -> None:
    status, _ = finished(supd, supd.job("says", "says.py", "nothing", "error", tables=ONCE), "failed")
    incident = status["incident"]
    assert incident["error"] == {
        "message": "ValueError: no shard 1",
        "raised": "ValueError at train.py:31",
        "file": f"{status['logs_dir']}/gen-0000/rank-00001.error.json",
    }
    assert incident["summary"].endswith("exited with code 3: ValueError: no shard 1")
    assert (incident["rank"], incident["exit_code"]) == (1, 3)
    assert incident["cause_key"] == "ValueError at train.py:31"
    shown = supd.supctl("status", status["run"]).stdout
    assert "ValueError: no shard 1   (ValueError at train.py:31)" in shown
    assert "rank-00001.error.json" in shown
    events = supd.supctl("events", status["run"], "--type", "incident.opened").stdout
    assert "ValueError: no shard 1" in events


def test_the_rank_that_raised_first_is_the_root_also_where_another_one_ended_first(supd: Supd) -> None:
    status, ranks = finished(supd, supd.job("first", "says.py", "hang", "late", tables=ONCE), "failed")
    incident = status["incident"]
    assert (incident["rank"], incident["error"]["message"]) == (0, "ValueError: no shard 0")
    assert (incident["cause"], incident["signal"]) == ("exit", None)
    assert (ranks[0]["stopped_by_supervisor"], ranks[1]["exit_code"]) == (True, 3)


def test_error_files_that_cannot_be_understood_change_nothing(supd: Supd) -> None:
    status, ranks = finished(supd, supd.job("junk", "says.py", "junk", "pipe", "huge", tables=ONCE, nproc=3), "failed")
    assert status["incident"]["error"] is None
    assert status["incident"]["summary"].endswith("exited with code 3")
    assert len(ranks) == 3


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="could not import 'torch'")
def test_what_torchs_own_record_writes_is_understood(supd: Supd) -> None:
    status, _ = finished(supd, supd.job("recorded", "recorded.py", "fail", tables=ONCE), "failed")
    error = status["incident"]["error"]
    assert (status["incident"]["rank"], error["message"]) == (1, "ValueError: rank 1 has had enough")
    assert re.fullmatch("ValueError at .*/recorded.py:[0-9]+", error["raised"])
