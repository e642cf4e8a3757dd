"""Commands that change a run or wait for one: they end when it is so, with a code a script can use."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from protocol.messages.control import (
    Done,
    End,
    Failure,
    GetStatus,
    Request,
    Resolve,
    RestartRun,
    RunStatus,
    Statuses,
    StopRun,
    Watch,
)
from protocol.messages.upkeep import REASON_MAX
from supervisor.cli import follow, watching
from tests.cli.conftest import NO_SUCH_RUN, Daemon, Script, Step, Supctl, a_run, one_run
from tests.cli.json_check import problems

RUN = "hello@1a2b3c"
STOPPING = Done(run=RUN, runs=(RUN,))
STOPPED = a_run(state="stopped", is_final=True, ranks_running=0)


def shown(**changes: object) -> Statuses:
    return Statuses(runs=(a_run(**changes),))


def scripted(before: RunStatus, replies: Sequence[Step], watched: Sequence[Step]) -> Script:
    """Resolves to the one run, shows it as `before`, answers other requests with `replies`, plays `watched`."""

    def script(request: Request) -> Sequence[Step]:
        match request:
            case Resolve():
                return [Done(run=RUN)]
            case GetStatus():
                return [Statuses(runs=(before,))]
            case Watch():
                return watched
            case _:
                return replies

    return script


def test_stop_waits_until_the_run_is_gone(supctl: Supctl, daemon: Daemon) -> None:
    fake = daemon(scripted(a_run(), [STOPPING], [shown(state="stopping"), Statuses(runs=(STOPPED,))]))
    result = supctl("stop", "hello", "--grace", "1m30s")
    assert result.code == 0
    first, last = result.err.splitlines()
    assert first == "stopping hello@1a2b3c: gracefully, then SIGKILL after 1m30s"
    assert last.startswith("✓ hello@1a2b3c stopped")
    [request] = [request for request in fake.requests if isinstance(request, StopRun)]
    assert request == StopRun(run=RUN, grace_s=90.0)


def test_stop_now_gives_no_grace(supctl: Supctl, daemon: Daemon) -> None:
    fake = daemon(scripted(a_run(), [STOPPING], [Statuses(runs=(STOPPED,))]))
    assert "SIGKILL now" in supctl("stop", "--now").err
    assert StopRun(run=RUN, now=True) in fake.requests


def test_stop_of_a_run_that_is_over_says_so_and_succeeds(supctl: Supctl, daemon: Daemon) -> None:
    fake = daemon(scripted(STOPPED, [], []))
    result = supctl("stop")
    assert (result.code, result.err) == (0, "nothing to stop: hello@1a2b3c is already over (stopped)\n")
    assert not any(isinstance(request, StopRun) for request in fake.requests)


def test_stop_all_waits_for_every_run(supctl: Supctl, daemon: Daemon) -> None:
    fake = daemon(scripted(a_run(), [Done(runs=(RUN, "other@2"))], [Statuses(runs=(STOPPED,))]))
    assert supctl("stop", "--all").code == 0
    assert [request.run for request in fake.requests if isinstance(request, Watch)] == [RUN, "other@2"]


def test_stop_all_of_nothing_succeeds(supctl: Supctl, daemon: Daemon) -> None:
    daemon(scripted(a_run(), [Done()], []))
    assert (supctl("stop", "--all").code, supctl("stop", "--all", "hello").code) == (0, 2)


def test_a_slow_stop_says_how_many_ranks_are_left(
    supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "SILENT_S", 0.0)
    stopping = shown(state="stopping", ranks_running=3)
    daemon(scripted(a_run(), [STOPPING], [stopping, Statuses(runs=(STOPPED,))]))
    assert "… waiting for 3 of 4 ranks to end\n" in supctl("stop").err


def test_an_unknown_run_is_code_3_with_the_daemons_hint(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run()))
    for command in ("stop", "restart", "wait", "ps", "logs", "events", "status"):
        result = supctl(command, "nosuch")
        assert (command, result.code) == (command, NO_SUCH_RUN.exit_code)
        assert result.err.endswith("\n→ supctl status\n")


def test_several_active_runs_are_listed_by_the_daemon_and_the_choice_is_left_to_the_user(
    supctl: Supctl, daemon: Daemon
) -> None:
    several = Failure(code="F103", message="several runs are active: a@1, b@2", hint="supctl stop a@1", exit_code=2)
    daemon(lambda _request: [several])
    result = supctl("stop")
    assert (result.code, "a@1, b@2" in result.err) == (2, True)


def test_restart_with_another_job_file_hands_it_over_and_tells_of_it(
    supctl: Supctl, daemon: Daemon, tmp_path: Path
) -> None:
    file = tmp_path / "next.toml"
    file.write_text('name = "hello"')
    states = [shown(state="restarting"), shown(state="running", generation=1)]
    fake = daemon(scripted(a_run(), [Done(run=RUN, notes=("python /py",), warnings=("odd",))], states))
    result = supctl("restart", "--reload", str(file), "--reason", "lr 2")
    assert result.code == 0
    assert f"✓ {RUN} has the job of {file}\n  python /py\n\nodd\n" in result.err
    [asked] = [request for request in fake.requests if isinstance(request, RestartRun)]
    assert asked.job is not None
    assert (asked.job.job_file, asked.job.source, asked.reason) == (b'name = "hello"', str(file), "lr 2")


def test_another_job_file_and_a_node_to_leave_out_exclude_each_other_and_a_file_has_to_be_there(
    supctl: Supctl, daemon: Daemon
) -> None:
    assert supctl("restart", "--reload", "x.toml", "--without", "b").code == 2
    fake = daemon(scripted(a_run(), [], []))
    assert supctl("restart", "--reload", "/nowhere/x.toml").code == 78
    assert not [request for request in fake.requests if isinstance(request, RestartRun)]


def test_restart_returns_when_the_next_generation_runs(supctl: Supctl, daemon: Daemon) -> None:
    states = [shown(), shown(state="restarting"), shown(state="running", generation=1)]
    fake = daemon(scripted(a_run(), [Done(run=RUN)], states))
    result = supctl("restart", "--reason", "rank 1 slow")
    assert result.code == 0
    assert "✓ generation 1 runs   4/4 ranks" in result.err
    assert RestartRun(run=RUN, reason="rank 1 slow") in fake.requests


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("x" * (REASON_MAX + 1), "at most 300 characters, not 301"),
        ("new\ndata", "one line, without control characters"),
        ("\x1b[31mred", "one line, without control characters"),
        ("a\u2028b", "one line, without control characters"),
    ],
)
def test_a_reason_that_does_not_fit_on_one_line_is_a_usage_error_and_nothing_is_restarted(
    supctl: Supctl, daemon: Daemon, reason: str, words: str
) -> None:
    fake = daemon(scripted(a_run(), [], []))
    result = supctl("restart", "--reason", reason)
    assert (result.code, f"--reason: {words}" in result.err) == (2, True)
    assert fake.requests == []


def test_a_reason_may_be_as_long_as_supd_takes_it_and_in_any_script(supctl: Supctl, daemon: Daemon) -> None:
    reason = "データ　" + "x" * (REASON_MAX - 4)
    fake = daemon(scripted(a_run(), [Done(run=RUN)], [shown(generation=1)]))
    assert supctl("restart", "--reason", reason).code == 0
    assert RestartRun(run=RUN, reason=reason) in fake.requests


@pytest.mark.parametrize(("state", "code"), [("failed", 4), ("stopped", 5), ("succeeded", 0)])
def test_restart_of_a_run_that_ends_instead_tells_the_outcome(
    supctl: Supctl, daemon: Daemon, state: str, code: int
) -> None:
    daemon(scripted(a_run(), [Done(run=RUN)], [shown(state=state, is_final=True)]))
    assert supctl("restart").code == code


@pytest.mark.parametrize(
    ("condition", "state", "code"),
    [
        ("running", "running", 0),
        ("running", "succeeded", 0),
        ("running", "failed", 4),
        ("running", "stopped", 5),
        ("finished", "succeeded", 0),
        ("finished", "failed", 0),
        ("finished", "stopped", 0),
        ("succeeded", "succeeded", 0),
        ("succeeded", "failed", 4),
        ("succeeded", "stopped", 5),
    ],
)
def test_wait_ends_when_the_condition_is_reached_or_no_longer_can_be(
    supctl: Supctl, daemon: Daemon, condition: str, state: str, code: int
) -> None:
    final = shown(state=state, is_final=state != "running", reason="why")
    daemon(scripted(a_run(), [], [shown(state="starting"), final]))
    result = supctl("wait", "hello", "--for", condition)
    assert result.code == code
    assert result.err.splitlines()[:2] == [
        "hello@1a2b3c  starting generation 0",
        f"hello@1a2b3c  {state} generation 0  why",
    ]
    assert ("→ supctl status" in result.err) == (code != 0)


@pytest.mark.parametrize(
    ("condition", "what"), [("succeeded", "to succeed"), ("finished", "to finish"), ("running", "to run")]
)
def test_a_wait_for_a_run_that_waits_for_nothing_itself_says_what_it_is_there_for(
    supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch, condition: str, what: str
) -> None:
    monkeypatch.setattr(follow, "SILENT_S", 0.0)
    starting, over = shown(state="starting"), shown(state="succeeded", is_final=True)
    daemon(scripted(a_run(), [], [starting, starting, over]))
    assert supctl("wait", "hello", "--for", condition).err.splitlines() == [
        "hello@1a2b3c  starting generation 0",
        f"… waiting for hello@1a2b3c {what}",
        "hello@1a2b3c  succeeded generation 0",
    ]


def test_wait_that_times_out_is_124(supctl: Supctl, daemon: Daemon) -> None:
    end = threading.Event()
    daemon(scripted(a_run(), [], [shown(), end]))
    result = supctl("wait", "--timeout", "50ms")
    assert (result.code, "was not succeeded within" in result.err) == (124, True)
    result = supctl("wait", "--timeout", "50ms", "--json")
    end.set()
    assert (result.code, result.out, problems("error", result.err)) == (124, "", [])
    assert (json.loads(result.err)["exit"], json.loads(result.err)["where"]) == (124, None)


@pytest.mark.parametrize("text", ["5", "soon", "-1s"])
def test_a_duration_needs_a_unit(supctl: Supctl, text: str) -> None:
    result = supctl("wait", "--timeout", text)
    assert (result.code, "→ supctl wait --help" in result.err) == (2, True)


def test_a_stream_that_ends_before_the_run_is_a_supd_that_went_away_and_is_waited_for(
    supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "RETRY_MIN_S", 0.0)
    said = iter([[shown(), End()], [shown(), None], [shown(state="succeeded", is_final=True)]])
    others = scripted(a_run(), [], [])
    daemon(lambda request: next(said) if isinstance(request, Watch) else others(request))
    assert supctl("wait").code == 0
