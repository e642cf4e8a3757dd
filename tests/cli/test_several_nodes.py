"""Runs on several nodes: how supctl shows where they are, and what it asks for."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from protocol.messages.control import (
    Done,
    End,
    EventRecord,
    GetNodes,
    GetStatus,
    LogChunk,
    Nodes,
    NodeStatus,
    RankStatus,
    Request,
    Resolve,
    RestartRun,
    Start,
    Statuses,
    Watch,
)
from tests.cli.conftest import Daemon, Script, Step, Supctl, a_run, one_run
from tests.cli.json_check import problems

RUN = "hello@1a2b3c"
TWO = {"nodes": ("gpu-1", "gpu-2"), "nnodes": (2, 3), "spares": ("gpu-3",)}
LACKING = {
    "state": "failed",
    "is_final": True,
    "generation": None,
    "has_started": False,
    "lacked_nodes": True,
    "reason": "too few nodes after 600 s (rendezvous.join_timeout): gpu-2 (unreachable)",
    **TWO,
    "nodes": (),
}


def shown(**changes: object) -> Statuses:
    return Statuses(runs=(a_run(**changes),))


def answering(*watched: Step) -> Script:
    """A script that accepts everything, knows one run, and plays `watched` to who looks on."""

    def script(request: Request) -> Sequence[Step]:
        match request:
            case Resolve() | Start() | RestartRun():
                return [Done(run=RUN)]
            case GetStatus():
                return [shown()]
            case Watch():
                return watched
            case GetNodes():
                return [
                    Nodes(
                        nodes=tuple(NodeStatus(node=n, state="ready", address="h", port=1) for n in ("b", "a1", "a2"))
                    )
                ]
            case _:
                return []

    return script


@pytest.fixture
def job_file(tmp_path: Path) -> str:
    file = tmp_path / "job.toml"
    file.write_bytes(b'name = "hello"\n')
    return str(file)


# --- status ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "nnodes", "told"),
    [(("a",), (1, 1), "1/1"), (("a", "b"), (2, 3), "2/2:3"), ((), (4, 4), "0/4")],
)
def test_the_table_has_the_nodes_that_a_run_is_on_and_those_that_it_wants(
    supctl: Supctl, daemon: Daemon, nodes: tuple[str, ...], nnodes: tuple[int, int], told: str
) -> None:
    daemon(one_run(a_run(nodes=nodes, nnodes=nnodes)))
    head, row = supctl("status").out.splitlines()
    at = head.index("NODES")
    assert row[at:].split()[0] == told


def test_a_run_names_its_nodes_and_its_spares(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run(**TWO), Nodes(nodes=())))
    out = supctl("status", "hello").out
    assert "4/4 ranks on 2/2:3 nodes" in out
    assert "  nodes     gpu-1, gpu-2\n  spares    gpu-3\n" in out


def test_each_node_that_a_run_does_without_for_a_while_has_a_line_and_of_many_some(
    supctl: Supctl, daemon: Daemon
) -> None:
    daemon(one_run(a_run(excluded=tuple(f"n{i} (15 min more)" for i in range(7))), Nodes(nodes=())))
    out = supctl("status", "hello").out
    assert "  excluded  n0 (15 min more)\n            n1 (15 min more)\n" in out
    assert "            n4 (15 min more)\n            and 2 more\n" in out


def test_of_very_many_nodes_some_are_named(supctl: Supctl, daemon: Daemon) -> None:
    run = a_run(nodes=tuple(f"n{i}" for i in range(1000)), nnodes=(1000, 1000))
    daemon(one_run(run, Nodes(nodes=())))
    assert "  nodes     n0, n1, n2, n3, n4, n5, n6, n7 and 992 more\n" in supctl("status", "hello").out


def test_json_has_the_range_the_spares_and_whether_nodes_were_lacking(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run(**TWO)))
    out = supctl("status", "--json").out
    assert problems("status", out) == []
    (run,) = json.loads(out)["data"]["runs"]
    assert (run["nodes"], run["nnodes"], run["nnodes_max"]) == (["gpu-1", "gpu-2"], 2, 3)
    assert (run["spares"], run["lacked_nodes"]) == (["gpu-3"], False)


# --- a run that fails for too few nodes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", ["start FILE", "start --follow FILE", "restart", "wait", "wait --for running"], ids=lambda line: line
)
def test_a_run_that_fails_for_too_few_nodes_ends_with_75_and_says_whom_it_lacked(
    supctl: Supctl, daemon: Daemon, job_file: str, command: str
) -> None:
    daemon(answering(shown(**LACKING), End()))
    result = supctl(*command.replace("FILE", job_file).split())
    assert result.code == 75
    assert "too few nodes after 600 s (rendezvous.join_timeout): gpu-2 (unreachable)" in result.err


def test_the_next_step_then_is_a_look_at_the_nodes(supctl: Supctl, daemon: Daemon, job_file: str) -> None:
    daemon(answering(shown(**LACKING)))
    assert supctl("start", job_file).err.endswith("→ supctl nodes\n")


# --- what is asked for -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "allowed"), [((), False), (("--allow-mixed",), True)])
def test_nodes_that_differ_are_allowed_where_that_is_said(
    supctl: Supctl, daemon: Daemon, job_file: str, options: tuple[str, ...], allowed: bool
) -> None:
    fake = daemon(answering(shown()))
    assert supctl("start", *options, job_file).code == 0
    (request,) = [request for request in fake.requests if isinstance(request, Start)]
    assert request.allow_mixed is allowed


def test_a_restart_without_a_node_names_it_to_supd_and_says_so(supctl: Supctl, daemon: Daemon) -> None:
    fake = daemon(answering(shown(generation=1)))
    result = supctl("restart", "--without", "gpu-3", "--reason", "rank 19 slow")
    assert (result.code, result.err.splitlines()[0]) == (0, f"restarting {RUN} without gpu-3: generation 0 ends")
    assert RestartRun(run=RUN, reason="rank 19 slow", without="gpu-3") in fake.requests


def test_an_empty_node_does_not_mean_none(supctl: Supctl, daemon: Daemon) -> None:
    fake = daemon(answering(shown()))
    result = supctl("restart", "--without", "")
    assert (result.code, "an empty NODE names none" in result.err) == (2, True)
    assert fake.requests == []


@pytest.mark.parametrize(
    ("line", "found"),
    [("restart --without ", ["b", "a1", "a2"]), ("restart hello --without=a", ["--without=a1", "--without=a2"])],
)
def test_nodes_are_completed(supctl: Supctl, daemon: Daemon, line: str, found: list[str]) -> None:
    daemon(answering())
    assert supctl("completion", "--words", "--", *line.split(" ")).out.split() == found


def test_without_supd_no_node_is_completed_and_nothing_is_said(supctl: Supctl) -> None:
    result = supctl("completion", "--words", "--", "restart", "--without", "")
    assert (result.code, result.out, result.err) == (0, "", "")


# --- output ------------------------------------------------------------------------------------------------------


@pytest.fixture
def logs(supctl: Supctl, daemon: Daemon) -> Callable[..., list[str]]:
    """The lines of `supctl logs` of a run like this one, of whose ranks each has written one."""

    def show(*options: str, **changes: object) -> list[str]:
        chunks = [
            LogChunk(generation=0, rank=rank, stream="out", data=b"x\n", node=node)
            for rank, node in ((0, "gpu-1"), (3, "gpu-2"))
        ]
        detail: dict[str, str | int | float | bool | None] = {"ranks": 4, "nodes": 2}
        told = EventRecord(id=1, wall_s=1.0, run=RUN, generation=0, kind="generation.launched", text="", detail=detail)
        daemon(one_run(a_run(**changes), told, *chunks, End()))
        return supctl("logs", *options).out.splitlines()

    return show


def test_lines_name_the_node_and_the_rule_counts_the_nodes(logs: Callable[..., list[str]]) -> None:
    assert logs("-r", "all", **TWO) == ["── generation 0 · 4 ranks · 2 nodes ──", "gpu-1:0 │ x", "gpu-2:3 │ x"]


def test_lines_name_the_node_before_there_is_a_second_one(logs: Callable[..., list[str]]) -> None:
    """So a prefix does not change when a node joins."""
    assert logs(nodes=("gpu-1",), nnodes=(1, 2))[1] == "gpu-1:0 │ x"


# --- ranks -------------------------------------------------------------------------------------------------------


def ranks_on(*nodes: str) -> tuple[RankStatus, ...]:
    """Eight ranks a node, running."""
    return tuple(
        RankStatus(rank=8 * i + local, node=node, local_rank=local, pid=100 + local, state="running")
        for i, node in enumerate(nodes)
        for local in range(8)
    )


@pytest.mark.parametrize(
    ("nodes", "cell"),
    [(("gpu-01", "gpu-02", "gpu-13"), "gpu-*"), (("a", "b", "c"), "*"), (("a", "a", "a"), "a")],
)
def test_ranks_that_are_alike_fold_over_nodes(
    supctl: Supctl, daemon: Daemon, nodes: tuple[str, ...], cell: str
) -> None:
    daemon(one_run(a_run(rank_list=ranks_on(*nodes))))
    _, row = supctl("ps").out.splitlines()
    assert row.split()[:5] == ["0-23", cell, ".", ".", "running"]
    assert row.endswith("24 ranks alike")


def test_an_exception_is_shown_on_its_node(supctl: Supctl, daemon: Daemon) -> None:
    ranks = list(ranks_on("gpu-1", "gpu-2", "gpu-3"))
    ranks[9] = msgspec.structs.replace(ranks[9], state="stalled")
    daemon(one_run(a_run(rank_list=tuple(ranks))))
    _, *rows = supctl("ps").out.splitlines()
    assert [row.split()[:3] for row in rows] == [["0-8", "gpu-*", "."], ["9", "gpu-2", "1"], ["10-23", "gpu-*", "."]]
