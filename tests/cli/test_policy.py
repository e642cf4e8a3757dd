"""`supctl resume` and `supctl policy`, and the codes of runs that made no progress or were preempted."""

import json
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from protocol.messages.control import Done, End, Failure, GetStatus, Request, Resolve, RunStatus, Statuses, Watch
from protocol.messages.upkeep import AskPolicy, Policy, PolicyStep, ResumeRun
from tests.cli.conftest import Daemon, Script, Step, Supctl, a_run, one_run
from tests.cli.json_check import problems

RUN = "hello@1a2b3c"
HELD = a_run(state="held", phase="held", ranks_running=0, reason="restart budget spent (3 of 3)")
STEPS = (
    PolicyStep(number=1, action="restart", delay_s=0.0, charged=True, why="restart 1 of 2"),
    PolicyStep(number=2, action="restart", delay_s=5.0, charged=True, why="restart 2 of 2"),
    PolicyStep(number=3, action="fail", delay_s=0.0, charged=False, why="restart budget spent (2 of 2)"),
)


def scripted(reply: Step, *watched: RunStatus) -> Script:
    """A run that is held, the answer to what is asked of it, and how it goes on."""

    def script(request: Request) -> Sequence[Step]:
        match request:
            case Resolve():
                return [Done(run=RUN)]
            case GetStatus():
                return [Statuses(runs=(HELD,))]
            case Watch():
                return [*(Statuses(runs=(status,)) for status in watched), End()]
            case _:
                return [reply]

    return script


def test_resume_looks_on_until_the_next_generation_runs(supctl: Supctl, daemon: Daemon) -> None:
    fake = daemon(scripted(Done(run=RUN), HELD, a_run(generation=1, state="restarting"), a_run(generation=1)))
    result = supctl("resume", "hello")
    assert (result.code, result.out) == (0, "")
    first, last = result.err.splitlines()
    assert first == "resuming hello@1a2b3c: its budgets are as at its start"
    assert last.startswith("✓ generation 1 runs   4/4 ranks")
    assert [request for request in fake.requests if isinstance(request, ResumeRun)] == [ResumeRun(run=RUN)]


def test_resume_of_a_run_that_is_held_again_ends_with_4(supctl: Supctl, daemon: Daemon) -> None:
    again = replace(HELD, generation=1, reason="restart budget spent (1 of 1)")
    daemon(scripted(Done(run=RUN), HELD, a_run(generation=1, state="restarting"), again))
    result = supctl("resume", "hello")
    assert (result.code, result.out) == (4, "")
    assert "✗ hello@1a2b3c is held again: restart budget spent (1 of 1)" in result.err


def test_a_run_that_is_not_held_is_told_as_such(supctl: Supctl, daemon: Daemon) -> None:
    daemon(scripted(Failure(code="F123", message=f"{RUN} is not held: running", hint=f"supctl status {RUN}")))
    result = supctl("resume")
    assert result.code == 1
    assert result.err.startswith(f"error[F123]: {RUN} is not held: running")


def test_status_of_a_held_run_says_what_to_do(supctl: Supctl, daemon: Daemon) -> None:
    daemon(lambda _request: [Statuses(runs=(HELD,))])
    result = supctl("status", "--check")
    assert "→ supctl resume hello" in result.out
    assert result.code == 6


def test_policy_tells_what_would_follow_failure_by_failure(supctl: Supctl, daemon: Daemon) -> None:
    fake = daemon(scripted(Policy(run=RUN, steps=STEPS)))
    result = supctl("policy", "--exit", "139", "--rank", "37", "--after", "3", "hello")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == [
        "hello@1a2b3c: if rank 37 ended with 139 now",
        "FAILURE  THEN     WAIT",
        "1        restart  none        restart 1 of 2",
        "2        restart  up to 5.0s  restart 2 of 2",
        "3        fail     -           restart budget spent (2 of 2)",
    ]
    assert fake.requests[-1] == AskPolicy(run=RUN, exit_code=139, times=3)


def test_policy_as_a_document_is_what_its_schema_says(supctl: Supctl, daemon: Daemon) -> None:
    daemon(scripted(Policy(run=RUN, steps=STEPS)))
    printed = supctl("policy", "--exit", "1", "--json").out
    assert problems("policy", printed) == []
    assert json.loads(printed)["data"]["steps"][1] == {
        "number": 2,
        "action": "restart",
        "delay_seconds": 5.0,
        "charged": True,
        "why": "restart 2 of 2",
    }


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--exit", "0"], "a rank that ends with 0 has done its work: no failure to decide about"),
        (["--exit", "256"], "'256': write a number from 1 to 255"),
        (["--exit", "1", "--after", "0"], "'0': write a number from 1 to 1000"),
        (["--exit", "1", "--rank", "-1"], "'-1': write a number from 0 to 2147483647"),
        ([], "the following arguments are required: --exit"),
    ],
)
def test_what_is_no_failure_is_a_usage_error(supctl: Supctl, argv: list[str], says: str) -> None:
    result = supctl("policy", *argv)
    assert result.code == 2
    assert says in result.err


@pytest.mark.parametrize(
    ("changes", "waited", "followed"),
    [
        ({"state": "failed", "made_no_progress": True}, 7, 7),
        ({"state": "preempted", "preempted_code": 33}, 5, 33),
        ({"state": "failed"}, 4, 4),
    ],
)
def test_no_progress_and_a_preemption_have_codes_of_their_own(
    supctl: Supctl, daemon: Daemon, changes: dict[str, object], waited: int, followed: int
) -> None:
    over = a_run(is_final=True, ranks_running=0, **changes)
    daemon(one_run(over, Statuses(runs=(over,)), End()))
    assert supctl("wait", "hello").code == waited
    assert supctl("logs", "--exit-status", "hello").code == followed
