"""`supctl drain`, `undrain` and `scale`: what is asked for, what is told while it takes, and how it ends."""

import time
from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec
import pytest

from protocol.exit_code import ExitCode
from protocol.messages.control import (
    Done,
    Failure,
    GetNodes,
    GetStatus,
    Nodes,
    NodeStatus,
    RankStatus,
    Request,
    Resolve,
    RunStatus,
    Statuses,
)
from protocol.messages.upkeep import DrainNodes, ScaleRun, UndrainNodes
from supervisor.cli import drain
from tests.cli.conftest import Daemon, Step, Supctl, a_run
from tests.cli.test_nodes import a_node

T = TypeVar("T")
RUN = a_run(
    nodes=("gpu-1", "gpu-2"),
    nnodes=(2, 3),
    spares=("gpu-3",),
    plan="gpu-2 is to be free (ECC); it waits for the next checkpoint",
    plan_left_s=1790.0,
    rank_list=tuple(
        RankStatus(rank=n, node=f"gpu-{1 + n // 2}", local_rank=n % 2, pid=n, state="running") for n in range(4)
    ),
)
MOVED = a_run(nodes=("gpu-1", "gpu-3"), generation=1, saved_step=18_000)
NO_NODE = Failure(code="F112", message="there is no node gpu-9 in the fleet", hint="supctl nodes", exit_code=3)


def b(state: str = "draining", *, by: str = "ada", runs: tuple[str, ...] = (RUN.run,)) -> NodeStatus:
    return a_node("gpu-2", state=state, drain_by=by, is_drained=state == "drained", runs=runs)


class Fleet:
    """Says of nodes and of the run one thing after the other, the last one again and again."""

    def __init__(self, nodes: Sequence[tuple[NodeStatus, ...]], runs: Sequence[RunStatus] = (RUN,)) -> None:
        self._nodes, self._runs = list(nodes), list(runs)

    def script(self, request: Request) -> Iterable[Step]:
        match request:
            case Resolve():
                return [Done(run=RUN.run)]
            case GetNodes():
                return [Nodes(nodes=_next(self._nodes))]
            case GetStatus():
                return [Statuses(runs=(_next(self._runs),))]
            case _:
                return [Done(run=RUN.run)]


def _next(things: list[T]) -> T:
    return things.pop(0) if len(things) > 1 else things[0]


def wants(requests: Iterable[Request]) -> list[DrainNodes]:
    return [request for request in requests if isinstance(request, DrainNodes)]


def test_a_drain_says_who_uses_the_node_what_it_waits_for_and_when_it_is_free(supctl: Supctl, daemon: Daemon) -> None:
    fleet = Fleet([(b(),), (b(),), (b("drained", runs=()),)], [RUN, RUN, RUN, MOVED])
    one = daemon(fleet.script)
    result = supctl("drain", "gpu-2", "--reason", "ECC")
    assert (result.code, result.out) == (ExitCode.OK, "")
    lines = result.err.splitlines()
    assert lines[:2] == [
        "gpu-2 takes no new work. hello@1a2b3c uses it (ranks 2-3); spare gpu-3 is ready.",
        "… hello@1a2b3c: gpu-2 is to be free (ECC); it waits for the next checkpoint, 29m50s left",
    ]
    assert lines[2].startswith("✓ gpu-2 drained   ")
    assert lines[3:] == ["✓ generation 1 of hello@1a2b3c on gpu-1, gpu-3"]
    assert wants(one.requests) == [DrainNodes(nodes=("gpu-2",), reason="ECC")]


def test_a_drain_says_at_once_which_run_cannot_go_on_and_how_that_ends(supctl: Supctl, daemon: Daemon) -> None:
    note = "hello@1a2b3c cannot go on without gpu-2: it waits for another node, and ends with exit code 75 after 10m"
    waiting = a_run(phase="forming", state="restarting", waiting_for="1 more node to join the fleet", wait_left_s=590.0)
    fleet = Fleet([(b(),), (b("drained", runs=()),)], [msgspec.structs.replace(RUN, spares=()), waiting])
    daemon(lambda r: [Done(notes=(note,))] if isinstance(r, DrainNodes) else fleet.script(r))
    lines = supctl("drain", "gpu-2", "--at", "now").err.splitlines()
    assert lines[0].endswith("(ranks 2-3); no spare stands by yet.")
    assert f"! {note}" in lines
    assert "… hello@1a2b3c waits for 1 more node to join the fleet, 9m50s left" in lines


def test_several_spares_are_ready(supctl: Supctl, daemon: Daemon) -> None:
    spares = msgspec.structs.replace(RUN, spares=("gpu-3", "gpu-4"))
    daemon(Fleet([(b(),)], [spares]).script)
    assert "; spares gpu-3, gpu-4 are ready.\n" in supctl("drain", "gpu-2", "--no-wait").err


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ([], DrainNodes(nodes=("gpu-2",))),
        (["--at", "now"], DrainNodes(nodes=("gpu-2",), at="now")),
        (["--at", "+3h"], DrainNodes(nodes=("gpu-2",), at="time", after_s=10_800.0)),
        (["--at", "in 3h"], DrainNodes(nodes=("gpu-2",), at="time", after_s=10_800.0)),
        (["--deadline", "1h"], DrainNodes(nodes=("gpu-2",), deadline_s=3600.0)),
        (["gpu-4", "gpu-2"], DrainNodes(nodes=("gpu-2", "gpu-4"))),
    ],
)
def test_what_is_asked_for(supctl: Supctl, daemon: Daemon, words: list[str], asked: DrainNodes) -> None:
    one = daemon(Fleet([(b("drained", runs=()), a_node("gpu-4", drain_by="ada", is_drained=True))]).script)
    assert supctl("drain", "gpu-2", *words).code == 0
    [found] = wants(one.requests)
    assert found.after_s == pytest.approx(asked.after_s)
    assert (found.nodes, found.at, found.deadline_s) == (asked.nodes, asked.at, asked.deadline_s)


@pytest.mark.parametrize(
    "words",
    [
        ["--at", "later"],
        ["--at", "25:00"],
        ["--at", "2020-01-01T00:00"],
        ["--at", ""],
        ["--deadline", "soon"],
        ["--reason", "a\nb"],
        [""],
    ],
)
def test_what_cannot_be_meant_is_a_usage_error_and_nothing_is_asked(supctl: Supctl, words: list[str]) -> None:
    assert supctl("drain", "gpu-2", *words).code == ExitCode.USAGE


def test_a_node_that_is_not_there_is_an_error_of_its_own(supctl: Supctl, daemon: Daemon) -> None:
    daemon(lambda _request: [NO_NODE])
    for command in ("drain", "undrain"):
        result = supctl(command, "gpu-9")
        assert (result.code, result.err) == (3, "error[F112]: there is no node gpu-9 in the fleet\n→ supctl nodes\n")


def test_without_waiting_it_returns_at_once_and_quietly_names_the_nodes(supctl: Supctl, daemon: Daemon) -> None:
    daemon(Fleet([(b(),)]).script)
    assert supctl("drain", "gpu-2", "--no-wait").code == 0
    assert supctl("-q", "drain", "gpu-2", "--no-wait").out == "gpu-2\n"


def test_ctrl_c_leaves_the_drain_on(supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    daemon(Fleet([(b(),)]).script)
    monkeypatch.setattr(time, "sleep", interrupt)
    result = supctl("drain", "gpu-2")
    assert result.code == ExitCode.INTERRUPTED
    assert result.err.endswith("detached; gpu-2 stays draining   → supctl nodes\n")


def test_a_drain_that_somebody_lifts_is_not_waited_for(supctl: Supctl, daemon: Daemon) -> None:
    daemon(Fleet([(b(),), (b(),), (b("ready", by=""),)]).script)
    result = supctl("drain", "gpu-2")
    assert (result.code, result.err.splitlines()[-1]) == (ExitCode.FAILED, "gpu-2 was undrained meanwhile")


def test_a_run_that_waits_for_nodes_does_not_keep_supctl_once_the_node_is_free(supctl: Supctl, daemon: Daemon) -> None:
    waiting = a_run(phase="forming", state="restarting", nodes=("gpu-1", "gpu-2"), waiting_for="a node: 1 of 2 nodes")
    daemon(Fleet([(b(),), (b("drained", runs=()),)], [RUN, waiting]).script)
    result = supctl("drain", "gpu-2", "--at", "now")
    assert result.code == 0
    assert "… hello@1a2b3c waits for a node: 1 of 2 nodes\n" in result.err


def test_while_supd_is_away_the_wait_goes_on(supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that ends without an answer; then supd answers again."""
    monkeypatch.setattr(drain, "LOOK_S", 0.01)
    fleet, looks = Fleet([(b(),), (b("drained", runs=()),)], [RUN, MOVED]), []

    def script(request: Request) -> Iterable[Step]:
        looks.extend([1] if isinstance(request, GetNodes) else [])
        return [None] if isinstance(request, GetNodes) and 2 <= len(looks) <= 3 else fleet.script(request)

    daemon(script)
    result = supctl("drain", "gpu-2")
    assert result.code == 0
    assert result.err.count("waiting for supd to be back") == 1
    assert "✓ gpu-2 drained" in result.err


def test_nodes_are_used_again(supctl: Supctl, daemon: Daemon) -> None:
    one = daemon(Fleet([()]).script)
    result = supctl("undrain", "gpu-2", "gpu-3", "gpu-2")
    assert (result.code, result.err) == (0, "✓ gpu-2, gpu-3 may be used again\n")
    assert one.requests == [UndrainNodes(nodes=("gpu-2", "gpu-3"))]


@pytest.mark.parametrize(
    ("words", "asked", "said"),
    [
        (["--nnodes", "2:4"], ScaleRun(run=RUN.run, nnodes=(2, 4)), "2 to 4 nodes"),
        (["--nnodes", "1"], ScaleRun(run=RUN.run, nnodes=(1, 1)), "1 node"),
        (["--nnodes", "3", "--deadline", "5m"], ScaleRun(run=RUN.run, nnodes=(3, 3), deadline_s=300.0), "3 nodes"),
    ],
)
def test_a_scale_says_what_it_asked_for_and_what_the_run_waits_for(
    supctl: Supctl, daemon: Daemon, words: list[str], asked: ScaleRun, said: str
) -> None:
    one = daemon(Fleet([()]).script)
    result = supctl("scale", "hello", *words)
    assert result.code == 0
    assert result.err == (
        f"✓ hello@1a2b3c is to be on {said}\n"
        "… gpu-2 is to be free (ECC); it waits for the next checkpoint (29m50s left)   → supctl status hello@1a2b3c\n"
    )
    assert asked in one.requests


@pytest.mark.parametrize("nnodes", ["", "0", "4:2", "2:", "two", "1:99999999"])
def test_numbers_of_nodes_that_make_no_sense_are_usage_errors(supctl: Supctl, nnodes: str) -> None:
    assert supctl("scale", "hello", "--nnodes", nnodes).code == ExitCode.USAGE


def test_a_scale_needs_its_numbers(supctl: Supctl) -> None:
    assert "--nnodes" in supctl("scale", "hello").err
