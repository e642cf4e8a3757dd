"""`supctl status`: progress, what is stalled, --watch and --check."""

import itertools
import json
import math
import re
import signal
import subprocess
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise, repeat

import pytest

from protocol.exit_code import ExitCode
from protocol.messages.control import Done, GetStatus, Incident, RankStatus, Request, Resolve, RunStatus, Statuses
from supervisor.cli.render import age, rate
from supervisor.cli.screen import NO_WRAP, WRAP
from supervisor.cli.status import STEP_EVERY_S
from tests.cli.conftest import LIMIT_S, Daemon, Script, Step, Supctl, a_run, one_run
from tests.e2e.supd import BIN

PROGRESS = {"step": 17_800, "total_steps": 50_000, "rate": 0.88, "eta_s": 36_590.0, "silent_s": 1.2}
OVER = a_run(state="succeeded", is_final=True, ended_wall_s=1.8e9 + 60, step=50_000, total_steps=50_000)


def one_after_another(*states: tuple[RunStatus, ...]) -> Script:
    """A daemon whose runs are in these states, the next one whenever it is asked; the last one stays."""
    left: Iterator[tuple[RunStatus, ...]] = chain(states, repeat(states[-1]))

    def script(request: Request) -> Iterable[Step]:
        match request:
            case Resolve():
                return [Done(run=states[0][0].run)]
            case GetStatus():
                return [Statuses(runs=next(left))]
            case _:
                return []

    return script


def a_rank(number: int, state: str = "running", **more: object) -> RankStatus:
    values: dict[str, object] = {"node": "n1", "local_rank": number, "pid": 100 + number}
    return RankStatus(rank=number, state=state, **(values | more))  # type: ignore[arg-type]


# --- progress ----------------------------------------------------------------------------------------------------


def test_the_table_shows_step_rate_and_the_age_of_the_last_progress(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_after_another((a_run(**PROGRESS), a_run(run="idle@1", job="idle"))))
    head, first, second = supctl("status").out.splitlines()
    at = [head.index(name) for name in ("STEP", "RATE", "PROGRESS", "RESTARTS")]
    cells = [[line[a:b].strip() for a, b in pairwise(at)] for line in (first, second)]
    assert cells == [["17,800", "0.88/s", "1s ago"], ["-", "-", "-"]]


def test_a_job_shows_its_step_rate_eta_and_what_a_crash_would_lose(supctl: Supctl, daemon: Daemon) -> None:
    ranks = tuple(a_rank(number, phase="eval" if number else "") for number in range(4))
    daemon(one_run(a_run(**PROGRESS, loss=2.31416, saved_step=17_600, rank_list=ranks)))
    lines = supctl("status", "hello").out.splitlines()
    assert "  step      17,800 of 50,000   0.88/s   ETA 10h09m   loss 2.314   last progress 1s ago" in lines
    assert "  phase     eval (ranks 1-3)" in lines
    assert "  saved     step 17,600   (a crash now loses 200 steps)" in lines


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        ({"total_steps": 90}, "  step      none shown yet, of 90"),
        ({"step": 5}, "  step      5"),
        ({"step": 5, "rate": 0.0, "silent_s": 400.0}, "  step      5   0   last progress 6m40s ago"),
    ],
)
def test_a_job_shows_what_is_known_of_its_progress(
    supctl: Supctl, daemon: Daemon, progress: dict[str, object], line: str
) -> None:
    daemon(one_run(a_run(**progress)))
    assert line in supctl("status", "hello").out.splitlines()


def test_a_job_without_any_progress_has_no_line_about_it(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run()))
    assert "  step " not in supctl("status", "hello").out


def test_stalled_ranks_are_named_with_a_next_step(supctl: Supctl, daemon: Daemon) -> None:
    stalled = tuple(a_rank(number, "stalled", note=f"no beat for {number} s") for number in range(1, 8))
    daemon(one_run(a_run(state="stalled", rank_list=(a_rank(0), *stalled))))
    lines = supctl("status", "hello").out.splitlines()
    assert lines[1:8] == [
        "  stalled   rank 1 on n1: no beat for 1 s",
        *(f"            rank {number} on n1: no beat for {number} s" for number in range(2, 6)),
        "            and 2 more   → supctl ps hello@1a2b3c",
        "            → supctl logs -r 1 hello@1a2b3c",
    ]


def test_of_a_rank_that_hung_it_is_told_who_ended_it(supctl: Supctl, daemon: Daemon) -> None:
    hung = Incident(
        number=1, generation=0, cause="hang", summary="rank 1 hangs", node="n1", signal="SIGABRT", shell_code=134
    )
    daemon(one_run(a_run(incident=hung)))
    assert "  generation 0 · signal SIGABRT · exit 134 · stopped by supervisor" in supctl("status", "hello").out


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_shown_and_null_in_json(supctl: Supctl, daemon: Daemon, loss: float) -> None:
    daemon(one_run(a_run(step=5, loss=loss)))
    assert f"  step      5   loss {loss}" in supctl("status", "hello").out.splitlines()
    assert json.loads(supctl("status", "hello", "--json").out)["data"]["runs"][0]["loss"] is None


@pytest.mark.parametrize(
    ("steps_a_second", "text"),
    [
        *((None, "-"), (0.0, "0"), (1e-9, "0"), (0.88, "0.88/s"), (12.345, "12.3/s"), (1234.5, "1,234/s")),
        *((99.96, "100/s"), (0.0111, "0.666/min"), (0.0005, "1.8/h")),
    ],
)
def test_a_rate_is_told_in_a_unit_in_which_it_can_be_read(steps_a_second: float | None, text: str) -> None:
    assert rate(steps_a_second) == text


def test_an_age_is_told_in_whole_seconds() -> None:
    assert [age(s) for s in (None, 0.0, 0.99, 9.99, 10.4, 400.0)] == ["-", "0s", "0s", "9s", "10s", "6m40s"]


# --- --check -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["starting", "running", "succeeded"])
def test_check_is_content_with_runs_that_are_as_they_should_be(supctl: Supctl, daemon: Daemon, state: str) -> None:
    daemon(one_run(a_run(state=state)))
    result = supctl("status", "--check")
    assert (result.code, result.err) == (ExitCode.OK, "")


@pytest.mark.parametrize("state", ["stalled", "restarting", "stopping", "failed", "stopped"])
def test_check_ends_with_6_and_says_what_is_not_as_it_should_be(supctl: Supctl, daemon: Daemon, state: str) -> None:
    daemon(one_run(a_run(state=state, reason="rank 1 is gone")))
    for argv in (["--check"], ["hello", "--check"], ["--check", "--json"]):
        result = supctl("status", *argv)
        assert result.code == ExitCode.FINDINGS
        assert result.err == f"✗ hello@1a2b3c {state}: rank 1 is gone\n→ supctl status hello@1a2b3c\n"
        assert "hello" in result.out


def test_check_asks_about_the_newest_run_of_each_job(supctl: Supctl, daemon: Daemon) -> None:
    old = a_run(run="hello@0", state="failed", is_final=True, submitted_wall_s=1.7e9)
    daemon(one_after_another((a_run(), old), (a_run(state="failed"), old), ()))
    assert supctl("status", "--check").code == ExitCode.OK
    result = supctl("status", "--check")
    assert (result.code, result.err.count(" failed")) == (ExitCode.FINDINGS, 1)
    assert supctl("status", "--check").code == ExitCode.OK  # no runs: nothing is wrong with any


def test_check_points_at_what_failed_rather_than_at_what_was_stopped(supctl: Supctl, daemon: Daemon) -> None:
    stopped = a_run(run="hello@0", job="hello", state="stopped", is_final=True)
    failed = a_run(run="other@1", job="other", state="failed", is_final=True)
    daemon(one_after_another((stopped, failed)))
    assert supctl("status", "--check").err.endswith("→ supctl status other@1\n")


def test_a_run_on_several_nodes_that_has_none_yet_has_no_table_of_them(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run(state="pending", nnodes=(2, 2), nodes=(), waiting_for="2 nodes with 8 slots free")))
    assert "NODE" not in supctl("status", "hello").out


def test_the_variable_names_the_job_that_is_shown(
    supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon(one_run(a_run(**PROGRESS)))
    monkeypatch.setenv("SUPCTL_JOB", "hello")
    lines = supctl("status").out.splitlines()
    assert lines[0].startswith("hello@1a2b3c  running   generation 0")
    assert any(line.startswith("  step      17,800 of 50,000") for line in lines)


def test_check_of_a_job_that_is_not_there_is_not_found(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run()))
    assert supctl("status", "nosuch", "--check").code == ExitCode.NOT_FOUND


# --- --watch -----------------------------------------------------------------------------------------------------


def test_watch_draws_in_place_on_a_terminal_until_the_job_is_over(
    supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINES", "4")
    daemon(one_after_another((a_run(**PROGRESS),), (OVER,)))
    result = supctl("--color", "never", "status", "hello", "--watch", is_tty=True)
    first, second = result.out.split("\x1b[J")[:2]
    assert (result.code, result.err) == (ExitCode.OK, "")
    assert "17,800 of 50,000" in first
    assert second.startswith("\x1b[3A\x1b[?7l")  # up to where the first began; three lines fit
    assert "succeeded" in second
    assert second.count("\x1b[K\n") == 3
    assert second.endswith("\x1b[?7h")


@pytest.mark.parametrize(
    ("lines", "jobs"), [("7", ["early", "late", "over-9", "over-8"]), ("4", ["early"]), ("80", None)]
)
def test_watch_of_more_runs_than_fit_shows_the_active_ones_then_the_newest_and_counts_the_others(
    supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch, lines: str, jobs: list[str] | None
) -> None:
    def one(name: str, at_s: float, *, is_final: bool = False) -> RunStatus:
        state = "succeeded" if is_final else "running"
        return a_run(run=f"{name}@1", job=name, state=state, is_final=is_final, submitted_wall_s=1.7e9 + at_s)

    over = [one(f"over-{number}", number, is_final=True) for number in range(10)]
    runs = (one("early", 0.0), *over, one("late", -1.0))
    monkeypatch.setenv("LINES", lines)

    def stop(_s: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("supervisor.cli.status.time.sleep", stop)
    daemon(one_after_another(runs))
    frame = supctl("--color", "never", "status", "--watch", is_tty=True).out.partition(NO_WRAP)[2].partition(WRAP)[0]
    head, *rows = frame.replace("\x1b[K", "").splitlines()
    assert head.startswith("JOB")
    shown = [row.split()[0] for row in rows]
    if jobs is None:
        assert shown == ["early", "late", *(f"over-{number}" for number in reversed(range(10)))]
    else:
        assert (shown[:-1], rows[-1]) == (jobs, f"{len(runs) - len(jobs)} more: supctl status")


def test_watch_without_a_terminal_is_a_line_a_change(supctl: Supctl, daemon: Daemon) -> None:
    moved = PROGRESS | {"step": 17_801}
    daemon(one_after_another((a_run(**PROGRESS),), (a_run(**moved),), (OVER,)))
    result = supctl("status", "hello", "--watch")
    assert result.code == ExitCode.OK
    assert result.out.splitlines() == [
        "hello  running generation 0, 4/4 ranks, step 17,800 of 50,000",
        "hello  succeeded generation 0, 4/4 ranks, step 50,000 of 50,000",
    ]


def test_watch_without_a_terminal_tells_of_a_step_that_moves_now_and_then(
    supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(1000.0, STEP_EVERY_S / 2)
    monkeypatch.setattr("supervisor.cli.status.boot_s", lambda: next(clock))
    monkeypatch.setattr("supervisor.cli.status.WATCH_S", 0.0)
    steps = (10, 11, 12, 12, 12, 13, 14, 15)
    daemon(one_after_another(*((a_run(step=step),) for step in steps), (a_run(step=15, is_final=True),)))
    out = supctl("status", "hello", "--watch").out
    assert re.findall("step ([0-9]+)", out) == ["10", "12", "13", "15"]


def test_watch_as_json_is_a_document_a_change(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_after_another((a_run(**PROGRESS),), (OVER,)))
    lines = supctl("status", "hello", "--watch", "--json").out.splitlines()
    assert [json.loads(line)["data"]["runs"][0]["state"] for line in lines] == ["running", "succeeded"]


def test_ctrl_c_ends_a_watch_and_says_that_nothing_is_touched(daemon: Daemon, address: str) -> None:
    daemon(one_after_another((a_run(),)))
    with subprocess.Popen(
        [str(BIN / "supctl"), "--addr", address, "status", "--watch"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as watch:
        assert watch.stdout is not None
        try:
            assert watch.stdout.readline().startswith("hello  running")
            watch.send_signal(signal.SIGINT)
            _, said = watch.communicate(timeout=LIMIT_S)
        finally:
            watch.kill()
    assert (watch.returncode, said) == (ExitCode.INTERRUPTED, "stopped watching; nothing is touched\n")


def test_watch_and_check_exclude_each_other(supctl: Supctl) -> None:
    assert supctl("status", "--watch", "--check").code == ExitCode.USAGE
