"""What `status`, `ps`, `events`, `validate` and `version` print, for people and for programs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from protocol.messages.control import Done, End, EventRecord, Failure, Incident, RankStatus, Request, Statuses
from tests.cli.conftest import GREETING, Daemon, Result, Step, Supctl, a_run, one_run

INCIDENT = Incident(
    number=2,
    generation=1,
    cause="exit",
    summary="rank 1 on n1 (pid 12) exited with code 7",
    node="n1",
    rank=1,
    exit_code=7,
    shell_code=7,
    wall_s=1_800_000_000.25,
    stderr_tail=(b"ValueError: \xff",),
)
RANKS = (
    RankStatus(rank=0, node="n1", local_rank=0, pid=11, state="running"),
    RankStatus(
        rank=1,
        node="n1",
        local_rank=1,
        pid=12,
        state="killed",
        signal="SIGSEGV",
        shell_code=139,
        core_dumped=True,
        note="killed by SIGSEGV (core dumped)",
        ended_wall_s=1_800_000_000.5,
        ran_s=2.5,
    ),
)


def document(result: Result, name: str) -> dict[str, Any]:
    assert result.code == 0
    assert result.out.count("\n") == 1
    content = json.loads(result.out)
    assert list(content) == ["schema", "time", "data", "warnings"]
    assert content["schema"] == f"supctl.{name}/1"
    data: dict[str, Any] = content["data"]
    return data


def two_runs(_request: Request) -> Sequence[Step]:
    failed = a_run(
        run="bert@2", job="bert", state="failed", is_final=True, reason="budget spent", ended_wall_s=1.8e9 + 90
    )
    waiting = a_run(state="starting", ranks=None, waiting_for="n2 to offer itself", wait_left_s=41.0, generation=None)
    return [Statuses(runs=(waiting, failed))]


def test_status_is_a_table_that_awk_can_read(supctl: Supctl, daemon: Daemon) -> None:
    daemon(two_runs)
    result = supctl("status")
    assert result.code == 0
    head, first, second = result.out.splitlines()
    assert head.split() == [*("JOB", "STATE", "GEN", "RANKS", "NODES", "STEP", "RATE", "PROGRESS", "RESTARTS", "UP")]
    assert first.split()[:9] == ["hello", "starting", "-", "-", "1/1", "-", "-", "-", "0"]
    assert first.endswith("waiting for n2 to offer itself (41s left)")
    assert second.endswith("1m30s  budget spent   → supctl status bert")


def test_a_terminal_that_is_too_narrow_drops_the_last_columns_and_shows_the_remarks_below(
    supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon(two_runs)
    for columns in (80, 40, 12, 5):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = supctl("--color", "never", "status", is_tty=True).out.splitlines()
        assert len(lines) == 5
        assert all(len(line) <= columns for line in lines)
        assert lines[0].startswith("JOB")
    monkeypatch.setenv("COLUMNS", "200")
    assert len(supctl("--color", "never", "status", is_tty=True).out.splitlines()) == 3
    monkeypatch.setenv("COLUMNS", "20")
    assert "RESTARTS" in supctl("--color", "never", "status", "--wide", is_tty=True).out


def test_runs_of_the_same_job_are_told_apart_by_their_run(supctl: Supctl, daemon: Daemon) -> None:
    daemon(lambda _request: [Statuses(runs=(a_run(), a_run(run="hello@9", state="stopped", is_final=True)))])
    assert [line.split()[0] for line in supctl("ls").out.splitlines()] == ["JOB", "hello@1a2b3c", "hello@9"]


def test_no_runs_is_an_answer_with_a_next_step(supctl: Supctl, daemon: Daemon) -> None:
    daemon(lambda _request: [Statuses(runs=())])
    result = supctl("list")
    assert (result.code, result.out, result.err) == (0, "", "no runs yet   → supctl start FILE\n")


def test_status_of_a_job_shows_its_last_incident(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run(incident=INCIDENT, restarts_used=2, saved_step=40)))
    lines = supctl("status", "hello").out.splitlines()
    assert lines[0].startswith("hello@1a2b3c  running   generation 0   4/4 ranks on 1/1 nodes   up ")
    assert "  budget    2 of 10 restarts used, no-progress streak 0 of 3" in lines
    assert "  saved     step 40" in lines
    assert "  rank 1 on n1 (pid 12) exited with code 7" in lines
    assert lines[-2:] == ["  last lines of its stderr:", "    ┃ ValueError: �"]


def test_status_as_json_has_every_key_and_null_for_what_is_not_known(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run(incident=INCIDENT)))
    data = document(supctl("status", "hello", "--json"), "status")
    [run] = data["runs"]
    assert run["run"] == "hello@1a2b3c"
    assert run["submitted_at"] == "2027-01-15T08:00:00.000Z"
    assert (run["ended_at"], run["waiting_for"], run["saved_step"], run["reason"]) == (None, None, None, None)
    assert run["incident"]["time"] == "2027-01-15T08:00:00.250Z"
    assert run["incident"]["stderr_tail"] == ["ValueError: �"]
    assert (run["incident"]["signal"], run["incident"]["evidence"]) == (None, None)


def test_ps_is_a_line_a_rank_with_how_it_ended(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run(rank_list=RANKS)))
    assert supctl("ps").out.splitlines() == [
        "RANK  NODE  LOCAL  PID  STATE    STEP  BEAT  EXIT           PHASE",
        "0     n1    0      11   running  -     -     -              -",
        "1     n1    1      12   killed   -     -     SIGSEGV (139)  -      killed by SIGSEGV (core dumped)",
    ]
    assert supctl("ps", "-q").out == "11\n"


def test_ps_as_json_has_what_a_script_needs_to_find_a_process(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run(rank_list=RANKS)))
    data = document(supctl("ps", "--json"), "ps")
    assert (data["run"], data["job"], data["generation"]) == ("hello@1a2b3c", "hello", 0)
    assert data["ranks"][1] == {
        "rank": 1,
        "node": "n1",
        "local_rank": 1,
        "pid": 12,
        "state": "killed",
        "exit_code": None,
        "signal": "SIGSEGV",
        "shell_code": 139,
        "core_dumped": True,
        "stopped_by_supervisor": False,
        "ended_at": "2027-01-15T08:00:00.500Z",
        "ran_seconds": 2.5,
        "note": "killed by SIGSEGV (core dumped)",
        "step": None,
        "phase": None,
        "silent_seconds": None,
    }


def test_a_terminal_without_abilities_has_a_width_all_the_same(
    supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon(two_runs)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, supctl("status", is_tty=True).out.splitlines())) <= 60


def test_the_text_of_an_event_goes_on_below_itself_where_a_terminal_is_narrow(
    supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [f"word{number}" for number in range(20)]
    event = EventRecord(id=9, wall_s=1.8e9, run="r", generation=0, kind="rank.exited", text=" ".join(words))
    daemon(one_run(a_run(), event, End()))
    monkeypatch.setenv("COLUMNS", "80")
    _, *lines = supctl("events", is_tty=True).out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [word for line in lines for word in line.split()][3:] == words
    assert len(supctl("events").out.splitlines()) == 2


def test_events_are_a_line_each(supctl: Supctl, daemon: Daemon) -> None:
    event = EventRecord(id=9, wall_s=1.8e9, run="hello@1a2b3c", generation=None, kind="run.accepted", text="by\nada")
    daemon(one_run(a_run(), event, End()))
    head, line = supctl("events").out.splitlines()
    assert head.split() == ["TIME", "GEN", "EVENT", "DETAIL"]
    assert line.split()[1:] == ["-", "run.accepted", "byada"]
    assert json.loads(supctl("events", "--json").out) == {
        "id": "9",
        "time": "2027-01-15T08:00:00.000Z",
        "run": "hello@1a2b3c",
        "job": "hello",
        "generation": None,
        "kind": "run.accepted",
        "text": "by\nada",
        "detail": {},
    }


def test_an_error_as_json_goes_to_stderr_and_leaves_stdout_empty(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run()))
    result = supctl("ps", "nosuch", "--json")
    assert (result.code, result.out) == (3, "")
    assert json.loads(result.err) == {
        "schema": "supctl.error/1",
        "code": "F102",
        "message": "no run or job nosuch",
        "hint": "supctl status",
        "where": None,
        "exit": 3,
    }


@pytest.fixture
def job_file(tmp_path: Path) -> str:
    file = tmp_path / "job.toml"
    file.write_text('name = "hello"\n[run]\ncommand = ["true"]\n')
    return str(file)


def test_validate_says_if_only_the_file_could_be_checked(supctl: Supctl, job_file: str) -> None:
    result = supctl("validate", job_file)
    assert result.code == 0
    assert "is valid" in result.err
    assert "only the file was checked: no supd answers" in result.err


def test_validate_lets_supd_check_what_the_file_alone_does_not_tell(
    supctl: Supctl, daemon: Daemon, job_file: str
) -> None:
    daemon(lambda _request: [Failure(code="J401", message="no script x.py", hint="mend it", exit_code=78)])
    result = supctl("validate", job_file)
    assert (result.code, "no script x.py" in result.err) == (78, True)


def test_validate_tells_all_problems_at_once(supctl: Supctl, job_file: str) -> None:
    Path(job_file).write_text('nam = "hello"\n[run]\ncommand = 3\n')
    result = supctl("validate", job_file)
    assert result.code == 78
    assert result.err.count("error[J") >= 2
    content = json.loads(supctl("validate", "--json", job_file).out)
    assert content["data"]["valid"] is False
    assert len(content["data"]["problems"]) >= 2


def test_validate_as_json_warns_if_only_the_file_was_checked(supctl: Supctl, daemon: Daemon, job_file: str) -> None:
    content = json.loads(supctl("validate", "--json", job_file).out)
    assert (content["data"]["valid"], len(content["warnings"])) == (True, 1)
    daemon(lambda _request: [Done()])
    assert document(supctl("validate", "--json", job_file), "validate")["problems"] == []


def test_version_tells_both_and_an_absent_supd_is_no_failure(supctl: Supctl, daemon: Daemon) -> None:
    result = supctl("version")
    assert (result.code, "no supd answers" in result.err) == (0, True)
    daemon(lambda _request: [])
    assert supctl("version").out.splitlines()[1] == f"supd   {GREETING.supd_version}"
    assert document(supctl("version", "--json"), "version")["daemon"]["node"] == "n1"
