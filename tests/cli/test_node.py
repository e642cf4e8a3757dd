"""`supctl node lost NODE`: the operator's word that nothing runs there any more."""

import io
import sys
from collections.abc import Iterable

import pytest

from protocol.exit_code import ExitCode
from protocol.messages.control import DeclareLost, Done, Failure, GetNodes, RankStatus, Request
from tests.cli.conftest import Daemon, Result, Script, Step, Supctl, Terminal, a_run, one_run
from tests.cli.test_nodes import a_node, with_nodes

RUN = a_run(
    nodes=("gpu-1", "gpu-4"),
    rank_list=tuple(
        RankStatus(rank=n, node="gpu-1" if n < 2 else "gpu-4", local_rank=n % 2, pid=n, state="running")
        for n in range(4)
    ),
)
FLEET = (
    a_node("gpu-1", is_host=True, runs=(RUN.run,)),
    a_node("gpu-3", state="standby", spare_of=(RUN.run,)),
    a_node("gpu-4", state="unreachable", seen_s=75.0, note="its supd does not answer", runs=(RUN.run,)),
    a_node("gpu-5", state="suspect", seen_s=None),
)
TOOK = Done(runs=(RUN.run,))


def knows_the_fleet(*rest: Step) -> Script:
    """A daemon with a run on a node that does not answer; `rest` is played for everything but questions."""
    nodes, runs = with_nodes(nodes=FLEET), one_run(RUN, *rest)

    def script(request: Request) -> Iterable[Step]:
        return nodes(request) if isinstance(request, GetNodes) else runs(request)

    return script


class At:
    """Calls supctl at a terminal on which this is typed."""

    def __init__(self, supctl: Supctl, monkeypatch: pytest.MonkeyPatch) -> None:
        self._supctl = supctl
        self._monkeypatch = monkeypatch

    def call(self, typed: bytes, *argv: str) -> Result:
        self._monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(typed), encoding="utf-8"))
        return self._supctl(*argv, "--color", "never", is_tty=True)


@pytest.fixture
def at(supctl: Supctl, monkeypatch: pytest.MonkeyPatch) -> At:
    return At(supctl, monkeypatch)


def words_given(requests: Iterable[Request]) -> list[str]:
    return [request.node for request in requests if isinstance(request, DeclareLost) and not request.check_only]


@pytest.mark.parametrize("typed", [b"y\n", b" YES \n"])
def test_it_says_what_runs_there_and_what_the_word_means_and_asks_before_it_gives_it(
    at: At, daemon: Daemon, typed: bytes
) -> None:
    one = daemon(knows_the_fleet(TOOK))
    result = at.call(typed, "node", "lost", "gpu-4")
    assert (result.code, result.out) == (ExitCode.OK, "")
    assert result.err == (
        "gpu-4  unreachable   its supd was heard 1m15s ago; its supd does not answer\n"
        "  hello@1a2b3c   ranks 2-3\n"
        "Your word says that none of their processes is alive there: the machine is off, say, or was restarted.\n"
        "If that is not true, two generations of a run can run at once, and write the same files.\n"
        "Give your word that nothing of hello@1a2b3c is alive on gpu-4? [y/N] "
        "✓ hello@1a2b3c no longer waits for gpu-4\n"
    )
    assert words_given(one.requests) == ["gpu-4"]


def test_a_runner_without_ranks_is_waited_for_too(at: At, daemon: Daemon) -> None:
    daemon(knows_the_fleet(TOOK))
    assert (
        "  hello@1a2b3c   a runner, of whose ranks nothing is known"
        in at.call(b"n\n", "node", "lost", "gpu-5").err.splitlines()
    )


@pytest.mark.parametrize("typed", [b"", b"\n", b"n\n", b"yess\n", b"\xff\n"])
def test_whatever_is_no_yes_gives_no_word(at: At, daemon: Daemon, typed: bytes) -> None:
    one = daemon(knows_the_fleet(TOOK))
    result = at.call(typed, "node", "lost", "gpu-4")
    assert (result.code, words_given(one.requests)) == (ExitCode.FAILED, [])
    assert result.err.endswith("nothing was done\n→ supctl describe node gpu-4\n")


def test_without_a_terminal_it_needs_yes_and_nothing_is_done_without(supctl: Supctl, daemon: Daemon) -> None:
    one = daemon(knows_the_fleet(TOOK))
    refused = supctl("node", "lost", "gpu-4")
    assert (refused.code, words_given(one.requests)) == (ExitCode.USAGE, [])
    assert refused.err == (
        "error[C018]: without a terminal nobody can be asked\n"
        "→ make sure that nothing runs there, then: supctl node lost gpu-4 --yes\n"
    )
    assert supctl("node", "lost", "gpu-4", "--yes", "-q").out == "hello@1a2b3c\n"
    assert words_given(one.requests) == ["gpu-4"]


def test_a_node_without_ranks_can_be_given_up_too(at: At, daemon: Daemon) -> None:
    daemon(knows_the_fleet(Done()))
    lines = at.call(b"y\n", "node", "lost", "gpu-5").err.splitlines()
    assert lines[:2] == ["gpu-5  suspect   not heard since the host's supd began", "  no active run has a runner there"]
    assert lines[-1] == "Give your word that nothing of any run is alive on gpu-5? [y/N] no run waited for gpu-5"


def test_a_node_that_answers_is_refused_before_anybody_is_asked_anything(at: At, daemon: Daemon) -> None:
    one = daemon(knows_the_fleet(Failure(code="F115", message="gpu-4 answers", hint="supctl nodes")))
    result = at.call(b"y\n", "node", "lost", "gpu-4")
    assert (result.code, result.err) == (ExitCode.FAILED, "error[F115]: gpu-4 answers\n→ supctl nodes\n")
    assert words_given(one.requests) == []


def test_a_node_that_answers_again_meanwhile_is_refused_by_supd(supctl: Supctl, daemon: Daemon) -> None:
    daemon(knows_the_fleet(Failure(code="F115", message="gpu-4 answers", hint="supctl nodes")))
    assert supctl("node", "lost", "gpu-4", "--yes").err == "error[F115]: gpu-4 answers\n→ supctl nodes\n"


def test_a_node_that_the_fleet_does_not_have_is_exit_3_and_an_empty_name_none(supctl: Supctl, daemon: Daemon) -> None:
    daemon(knows_the_fleet(TOOK))
    assert supctl("node", "lost", "gpu-9", "--yes").code == ExitCode.NOT_FOUND
    assert supctl("node", "lost", "", "--yes").code == ExitCode.USAGE
    assert supctl("node", "lost").code == ExitCode.USAGE
    assert supctl("node", "gone", "gpu-4").code == ExitCode.USAGE


def test_what_is_said_of_a_node_and_its_name_complete(supctl: Supctl, daemon: Daemon) -> None:
    daemon(knows_the_fleet())
    for words, known in ((["node", ""], ["lost"]), (["node", "lost", "gpu-"], ["gpu-1", "gpu-3", "gpu-4", "gpu-5"])):
        assert supctl("completion", "--words", "--", *words).out.split() == known
