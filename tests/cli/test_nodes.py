"""`supctl nodes`, `describe node`, and the nodes of a run in `supctl status JOB`."""

import json
import re
from collections.abc import Iterable

import pytest

from protocol.exit_code import ExitCode
from protocol.messages.control import (
    DeclareLost,
    Done,
    End,
    Failure,
    GetNodes,
    LogChunk,
    Nodes,
    NodeStatus,
    Notice,
    RankStatus,
    Request,
)
from tests.cli.conftest import Daemon, Script, Step, Supctl, a_run, one_run
from tests.cli.json_check import problems


def a_node(name: str, **more: object) -> NodeStatus:
    values: dict[str, object] = {
        "state": "ready",
        "address": f"10.0.0.{name[-1]}",
        "port": 29410,
        "clock_off_s": 0.003,
        "seen_s": 0.4,
        "supd": "0.1.0",
    }
    return NodeStatus(node=name, **(values | more))  # type: ignore[arg-type]


FLEET = (
    a_node("gpu-1", is_host=True, clock_off_s=None, seen_s=None, runs=("hello@1a2b3c",)),
    a_node("gpu-2", runs=("hello@1a2b3c",), labels={"rack": "r2"}, cpus=96, devices="8 NVIDIA H100", kernel="6.8"),
    a_node("gpu-3", state="standby", spare_of=("hello@1a2b3c",), clock_off_s=-2.5, note="slow-clock"),
    a_node("gpu-4", state="unreachable", address="fd00::4", seen_s=75.0),
)
RUN = a_run(
    ranks=4,
    nodes=("gpu-1", "gpu-2"),
    nnodes=(2, 3),
    spares=("gpu-3",),
    rank_list=tuple(
        RankStatus(
            rank=n, node=f"gpu-{1 + n // 2}", local_rank=n % 2, pid=n, state="running" if n < 3 else "initializing"
        )
        for n in range(4)
    ),
)


def with_nodes(*rest: Step, nodes: tuple[NodeStatus, ...] = FLEET) -> Script:
    """A daemon that knows the fleet and one run."""
    others = one_run(RUN, *rest)

    def script(request: Request) -> Iterable[Step]:
        if isinstance(request, DeclareLost):
            return [Done()]
        if not isinstance(request, GetNodes):
            return others(request)
        chosen = tuple(node for node in nodes if request.node in ("", node.node))
        failure = Failure(code="F112", message="there is no node gpu-9", hint="supctl nodes", exit_code=3)
        return [Nodes(nodes=chosen) if chosen else failure]

    return script


def cells(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_every_node_is_a_line(supctl: Supctl, daemon: Daemon) -> None:
    daemon(with_nodes())
    head, *rows = cells(supctl("nodes").out)
    assert head == ["NODE", "STATE", "JOB", "DEVICES", "FREE", "ADDRESS", "SUPD", "CLOCK", "SEEN", "NOTE"]
    assert rows == [
        ["gpu-1", "ready", "hello", "-", "-", "10.0.0.1:29410", "0.1.0", "-", "-", "coordinator"],
        ["gpu-2", "ready", "hello", "8", "H100", "-", "10.0.0.2:29410", "0.1.0", "+3ms", "0s"],
        ["gpu-3", "standby", "hello", "-", "-", "10.0.0.3:29410", "0.1.0", "-2.5s", "0s", "slow-clock"],
        ["gpu-4", "unreachable", "-", "-", "-", "[fd00::4]:29410", "0.1.0", "+3ms", "1m15s"],
    ]
    assert supctl("nodes", "-q").out.split() == ["gpu-1", "gpu-2", "gpu-3", "gpu-4"]


def test_what_jobs_share_of_a_node_is_shown_and_how_much_of_it_is_free(supctl: Supctl, daemon: Daemon) -> None:
    fleet = (
        a_node("gpu-1", devices="8 NVIDIA H100", slots=8, free_slots=0),
        a_node("gpu-2", devices="8 NVIDIA H100", slots=4, free_slots=3),
        a_node("gpu-3", devices="none", slots=1, free_slots=1),
        a_node("gpu-4", devices="8 NVIDIA H100", slots=8, free_slots=8, state="lost"),
    )
    daemon(with_nodes(nodes=fleet))
    columns = [re.split("  +", line)[3:5] for line in supctl("nodes").out.splitlines()]
    assert columns == [["DEVICES", "FREE"], ["8 H100", "0"], ["8 H100, 4 slots", "3"], ["1 slot", "1"], ["8 H100", "?"]]
    assert "3 of 4 free" in supctl("describe", "node", "gpu-2").out
    shown = json.loads(supctl("nodes", "--json").out)["data"]["nodes"][1]
    assert (shown["slots"], shown["free_slots"], shown["max_jobs"]) == (4, 3, None)


def test_nodes_as_json_are_as_their_schema_says(supctl: Supctl, daemon: Daemon) -> None:
    daemon(with_nodes())
    text = supctl("nodes", "--json").out
    assert problems("nodes", text) == []
    first, second, third, _ = json.loads(text)["data"]["nodes"]
    assert (first["seen_seconds"], first["cpus"], second["cpus"], second["labels"]) == (None, None, 96, {"rack": "r2"})
    assert (third["state"], third["spare_of"], third["clock_off_seconds"]) == ("standby", ["hello@1a2b3c"], -2.5)


def test_of_a_node_there_is_everything_that_is_known(supctl: Supctl, daemon: Daemon) -> None:
    daemon(with_nodes())
    out = supctl("describe", "node", "gpu-2").out
    for line in (
        "runs      hello@1a2b3c (ranks 2-3)",
        "labels    rack = r2",
        "cpus      96",
        "devices   8 NVIDIA H100",
    ):
        assert f"  {line}\n" in out
    assert "memory" not in out, "which is not known"
    text = supctl("describe", "node", "gpu-2", "--json").out
    assert problems("describe-node", text) == []
    assert json.loads(text)["data"]["ranks"] == [{"run": "hello@1a2b3c", "ranks": [2, 3]}]
    assert "hello@1a2b3c (stands by)" in supctl("describe", "node", "gpu-3").out
    assert supctl("describe", "node", "gpu-1").out.startswith("gpu-1  ready   hosts the coordinator\n")


def test_a_node_that_is_not_there_is_exit_3(supctl: Supctl, daemon: Daemon) -> None:
    daemon(with_nodes())
    result = supctl("describe", "node", "gpu-9")
    assert (result.code, result.err.splitlines()[-1]) == (ExitCode.NOT_FOUND, "→ supctl nodes")
    assert supctl("describe", "node", "gpu-2", "--env").code == ExitCode.USAGE
    assert "supctl describe node NODE" in supctl("describe", "node").err


def test_a_run_of_several_nodes_shows_them_with_their_ranks(supctl: Supctl, daemon: Daemon) -> None:
    daemon(with_nodes())
    block = supctl("status", "hello").out
    assert cells(block.partition("\n\n")[2]) == [
        ["NODE", "STATE", "RANKS", "UP", "NOTE"],
        ["gpu-1", "ready", "0-1", "2/2", "coordinator,", "master"],
        ["gpu-2", "ready", "2-3", "2/2"],
        ["gpu-3", "standby", "-", "-", "spare,", "slow-clock"],
    ]


def test_of_hundreds_of_nodes_the_first_are_shown_and_the_others_counted(supctl: Supctl, daemon: Daemon) -> None:
    many = a_run(nodes=tuple(f"n{n}" for n in range(100)), nnodes=(100, 100))
    daemon(lambda request: [Nodes(nodes=())] if isinstance(request, GetNodes) else one_run(many)(request))
    assert supctl("status", "hello").out.splitlines()[-1] == "and 36 more   → supctl nodes"


def test_a_run_of_one_node_is_shown_without_asking_for_nodes(supctl: Supctl, daemon: Daemon) -> None:
    one = daemon(one_run(a_run()))
    assert "NODE " not in supctl("status", "hello").out
    assert not any(isinstance(request, GetNodes) for request in one.requests)


def test_nodes_complete_where_one_is_to_be_named(supctl: Supctl, daemon: Daemon) -> None:
    daemon(with_nodes())
    for words in (["describe", "node", "gpu-"], ["restart", "--without", "gpu-"]):
        assert supctl("completion", "--words", "--", *words).out.split() == ["gpu-1", "gpu-2", "gpu-3", "gpu-4"]


CHUNK = LogChunk(generation=0, node="gpu-1", rank=0, stream="out", data=b"hello\n")


def test_that_the_output_of_a_node_is_missing_is_told_and_never_among_lines_for_programs(
    supctl: Supctl, daemon: Daemon
) -> None:
    daemon(with_nodes(Notice(text="gpu-2 does not answer\x1b[2J"), CHUNK, End()))
    assert "sup │ gpu-2 does not answer\n" in supctl("logs").out
    for option in ("--no-prefix", "--json"):
        result = supctl("logs", option)
        assert "gpu-2" not in result.out
        assert result.err == "gpu-2 does not answer\n"


@pytest.mark.parametrize(
    ("logs_dir", "shown"),
    [
        ("/logs/hello", "/logs/hello   (of this node's ranks)"),
        ("", "on its nodes   → there: supctl logs --path hello@1a2b3c"),
    ],
)
def test_the_folder_of_a_run_is_shown_where_it_is_on_the_node_that_was_asked(
    supctl: Supctl, daemon: Daemon, logs_dir: str, shown: str
) -> None:
    daemon(one_run(a_run(nodes=("gpu-1", "gpu-2"), logs_dir=logs_dir)))
    lines = supctl("status", "hello").out.splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines if line.startswith("  logs ")] == [shown]
