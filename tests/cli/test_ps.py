"""`supctl ps`: progress of the ranks, choosing and sorting them, and jobs of many ranks on few lines."""

import json
from collections.abc import Iterable

import pytest

from protocol.exit_code import ExitCode
from protocol.messages.control import Done, Failure, GetStatus, RankStatus, Request, Resolve, Statuses
from tests.cli.conftest import Daemon, Script, Step, Supctl, a_run, one_run


def a_rank(number: int, **more: object) -> RankStatus:
    values: dict[str, object] = {
        "node": "n1",
        "local_rank": number,
        "pid": 1000 + number,
        "state": "running",
        "step": 17_800 + number % 2,
        "silent_s": 0.5,
    }
    return RankStatus(rank=number, **(values | more))  # type: ignore[arg-type]


def cells(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_a_rank_has_its_step_the_age_of_its_beat_and_its_phase(supctl: Supctl, daemon: Daemon) -> None:
    ranks = (a_rank(0), a_rank(1, step=None, silent_s=None), a_rank(2, silent_s=400.0, phase="eval"))
    daemon(one_run(a_run(rank_list=ranks)))
    head, *rows = cells(supctl("ps").out)
    assert head == ["RANK", "NODE", "LOCAL", "PID", "STATE", "STEP", "BEAT", "EXIT", "PHASE"]
    assert [row[5:] for row in rows] == [
        ["17,800", "0s", "-", "-"],
        ["-", "-", "-", "-"],
        ["17,800", "6m40s", "-", "eval"],
    ]


def test_16_ranks_are_a_line_each_and_more_are_folded(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run(rank_list=tuple(map(a_rank, range(16))))))
    assert len(cells(supctl("ps").out)) == 17


def test_ranks_that_are_alike_fold_and_each_exception_stands_alone(supctl: Supctl, daemon: Daemon) -> None:
    changed: dict[int, dict[str, object]] = {
        19: {"step": 17_700},
        40: {"silent_s": 60.0},
        41: {"state": "stalled", "silent_s": 60.0, "note": "no beat for 60 s"},
        50: {"phase": "eval"},
        63: {"state": "killed", "signal": "SIGKILL", "shell_code": 137, "ended_wall_s": 1.8e9},
    }
    ranks = tuple(a_rank(number, **changed.get(number, {})) for number in range(64))
    daemon(one_run(a_run(ranks=64, rank_list=ranks)))
    _, *rows = cells(supctl("ps").out)
    assert [row[0] for row in rows] == ["0-18", "19", "20-39", "40", "41", "42-49", "50", "51-62", "63"]
    assert rows[0] == ["0-18", "n1", ".", ".", "running", "17,800-17,801", "<1s", "-", "-", "19", "ranks", "alike"]
    assert rows[1][:6] == ["19", "n1", "19", "1019", "running", "17,700"]
    for argv in (["--all"], ["-r", "all"], ["--sort", "step"]):
        assert len(cells(supctl("ps", *argv).out)) == 65


def test_many_ranks_that_ended_alike_are_one_line(supctl: Supctl, daemon: Daemon) -> None:
    end = {"state": "killed", "signal": "SIGTERM", "shell_code": 143, "ended_wall_s": 1.8e9, "step": None}
    ranks = tuple(a_rank(number, **end, note="stopped by supervisor") for number in range(20))
    daemon(one_run(a_run(ranks=20, rank_list=ranks)))
    assert supctl("ps").out.splitlines()[1:] == [
        "0-19  n1    .      .    killed  -     -     SIGTERM (143)  -      20 ranks alike: stopped by supervisor"
    ]


def two_runs(*, second: tuple[RankStatus, ...]) -> Script:
    """A daemon with two active runs of which none is named, and one that is over."""
    runs = (
        a_run(run="hello@1a2b3c", job="hello", rank_list=(a_rank(0), a_rank(1))),
        a_run(run="other@4d5e6f", job="other", rank_list=second, state="running" if second else "pending"),
        a_run(run="old@777777", job="old", rank_list=(a_rank(0),), is_final=True),
    )

    def script(request: Request) -> Iterable[Step]:
        match request:
            case Resolve(word=""):
                return [Failure(code="F103", message="several jobs are active", hint="", exit_code=2)]
            case GetStatus(run=name):
                return [Statuses(runs=tuple(run for run in runs if name in ("", run.run)))]
            case _:
                return [Done(run="hello@1a2b3c")]

    return script


def test_of_several_active_runs_of_which_none_is_named_all_ranks_are_shown(supctl: Supctl, daemon: Daemon) -> None:
    daemon(two_runs(second=(a_rank(0, node="n2"),)))
    rows = cells(supctl("ps").out)
    assert rows[0][:3] == ["JOB", "RANK", "NODE"]
    assert [row[:3] for row in rows[1:]] == [["hello", "0", "n1"], ["hello", "1", "n1"], ["other", "0", "n2"]]
    assert supctl("ps", "-q").out.split() == ["1000", "1001", "1000"]
    documents = [json.loads(line)["data"] for line in supctl("ps", "--json").out.splitlines()]
    assert [(one["run"], len(one["ranks"])) for one in documents] == [("hello@1a2b3c", 2), ("other@4d5e6f", 1)]
    assert [row[0] for row in cells(supctl("ps", "hello").out)] == ["RANK", "0", "1"]
    assert supctl("ps", "-r", "0").code == ExitCode.USAGE


def test_an_active_run_that_has_no_ranks_yet_is_told_of_below_the_others(supctl: Supctl, daemon: Daemon) -> None:
    daemon(two_runs(second=()))
    result = supctl("ps")
    assert [row[0] for row in cells(result.out)] == ["JOB", "hello", "hello"]
    assert "other@4d5e6f has no ranks yet (pending)" in result.err


def test_what_programs_read_is_never_folded(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run(ranks=64, rank_list=tuple(map(a_rank, range(64))))))
    assert len(supctl("ps", "-q").out.split()) == 64
    ranks = json.loads(supctl("ps", "--json").out)["data"]["ranks"]
    assert len(ranks) == 64
    assert {key: ranks[1][key] for key in ("step", "phase", "silent_seconds")} == {
        "step": 17_801,
        "phase": None,
        "silent_seconds": 0.5,
    }


def test_ranks_can_be_chosen(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run(rank_list=tuple(map(a_rank, range(4))))))
    assert [row[0] for row in cells(supctl("ps", "-r", "!0-1,0").out)] == ["RANK", "0", "2", "3"]
    assert supctl("ps", "-q", "-r", "3").out == "1003\n"
    assert supctl("ps", "-r", "4").code == ExitCode.NOT_FOUND
    result = supctl("ps", "-r", "0,,1")
    assert (result.code, result.err.splitlines()[-1]) == (ExitCode.USAGE, "→ supctl ps --help")


@pytest.mark.parametrize(("key", "order"), [("step", ["1", "2", "0"]), ("beat", ["2", "0", "1"])])
def test_sorted_ranks_begin_with_what_needs_a_look(supctl: Supctl, daemon: Daemon, key: str, order: list[str]) -> None:
    ranks = (a_rank(0, step=9, silent_s=1.0), a_rank(1, step=None, silent_s=None), a_rank(2, step=5, silent_s=7.0))
    daemon(one_run(a_run(rank_list=ranks)))
    assert [row[0] for row in cells(supctl("ps", "--sort", key).out)[1:]] == order
