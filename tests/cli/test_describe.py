"""`supctl describe`: everything about a run or a rank, for people and for programs."""

import json

import pytest

from protocol.messages.control import Describe, Description, Failure, RankStatus, Setting
from tests.cli.conftest import Daemon, Supctl, a_run, one_run

RANKS = (
    RankStatus(rank=0, node="n1", local_rank=0, pid=70, state="exited", exit_code=3, ended_wall_s=1.8e9, ran_s=4.0),
    RankStatus(rank=1, node="n1", local_rank=1, pid=71, state="running", step=17800, phase="eval", silent_s=1.0),
)
ABOUT = Description(
    status=a_run(waiting_for="n2\x1b[2J to answer"),
    source="/jobs/job.toml",
    settings=(
        Setting(key="stop.grace", value='"2m"', origin="--set"),
        Setting(key="run.env.HF_TOKEN", value="***", origin="file"),
    ),
    command=("python", "train.py", "two words"),
    cwd="/jobs",
    limits={"nofile": 1024, "core": -1},
)
ABOUT_RANK = Description(
    status=a_run(rank_list=RANKS),
    source="/jobs/job.toml",
    settings=(),
    command=("python", "train.py"),
    cwd="/jobs",
    env=(("RANK", "1", "supd"),),
    files=("/logs/rank-00001.out", "/logs/rank-00001.err"),
)


def test_a_run_is_described_with_its_settings_and_who_gave_them(supctl: Supctl, daemon: Daemon) -> None:
    fake = daemon(one_run(a_run(), ABOUT))
    result = supctl("describe", "hello")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == "hello@1a2b3c  running   generation 0   4/4 ranks"
    assert "  waiting   for n2 to answer" in lines
    assert "  command   python train.py 'two words'" in lines
    assert "  limits    core unlimited, nofile 1024" in lines
    assert lines[-3:] == [
        "SETTING           ORIGIN  VALUE",
        'stop.grace        --set   "2m"',
        "run.env.HF_TOKEN  file    ***",
    ]
    assert fake.requests[-1] == Describe(run="hello@1a2b3c")


def test_a_narrow_terminal_does_without_the_origin_and_not_without_the_value(
    supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon(one_run(a_run(), ABOUT))
    monkeypatch.setenv("COLUMNS", "30")
    assert supctl("describe", "hello", is_tty=True).out.splitlines()[-3:] == [
        "SETTING           VALUE",
        'stop.grace        "2m"',
        "run.env.HF_TOKEN  ***",
    ]


@pytest.mark.parametrize("words", [["rank", "1"], ["rank", "1", "hello"]])
def test_a_rank_is_described_with_its_process_and_the_ends_of_others(
    supctl: Supctl, daemon: Daemon, words: list[str]
) -> None:
    fake = daemon(one_run(a_run(), ABOUT_RANK))
    lines = supctl("describe", *words, "--env").out.splitlines()
    assert lines[0] == "rank 1 of hello@1a2b3c  running   generation 0"
    assert {"  node      n1 (local rank 1)", "  pid       71", "  step      17,800", "  phase     eval"} <= set(lines)
    assert "  ended     rank 0: 3 after 4.0s" in lines
    assert "  file      /logs/rank-00001.err" in lines
    assert lines[-1] == "RANK      supd    1"
    assert fake.requests[-1] == Describe(run="hello@1a2b3c", rank=1, with_env=True)


def test_as_json_it_is_one_document(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run(), ABOUT_RANK))
    document = json.loads(supctl("describe", "rank", "1", "--json").out)
    assert document["schema"] == "supctl.describe/1"
    data = document["data"]
    assert (data["rank"]["rank"], data["run"]["run"]) == (1, "hello@1a2b3c")
    assert data["env"] == [{"name": "RANK", "value": "1", "origin": "supd"}]


def test_a_job_may_have_the_name_rank(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run(job="rank"), ABOUT))
    assert supctl("describe", "rank").code == 0


@pytest.mark.parametrize(
    "words",
    [["rank"], ["a", "b"], ["rank", "x"], ["rank", "-1"], ["rank", "1", "a", "b"], ["--env"], ["hello", "--env"]],
)
def test_what_is_neither_a_run_nor_a_rank_is_a_usage_error(supctl: Supctl, daemon: Daemon, words: list[str]) -> None:
    daemon(one_run(a_run(), ABOUT))
    result = supctl("describe", *words)
    assert (result.code, result.out) == (2, "")
    assert "\n→ supctl describe" in result.err


def test_a_rank_that_is_not_there_ends_with_3(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run(), Failure(code="F109", message="no rank 9", hint="supctl ps hello", exit_code=3)))
    result = supctl("describe", "rank", "9")
    assert (result.code, result.err) == (3, "error[F109]: no rank 9\n→ supctl ps hello\n")
