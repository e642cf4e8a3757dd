"""-r: words become numbers, and what the run does not have is an error that names it."""

from collections.abc import Sequence

import pytest

from protocol.messages.control import (
    Done,
    End,
    EventRecord,
    GetNodes,
    GetStatus,
    Incident,
    Nodes,
    NodeStatus,
    RankStatus,
    Request,
    Resolve,
    RunStatus,
    Statuses,
    Watch,
)
from protocol.text import numbers_text
from tests.cli.conftest import Daemon, FakeDaemon, Step, Supctl, a_run

RUN = "hello@1a2b3c"
INCIDENT = Incident(number=1, generation=0, cause="exit", summary="rank 2 failed", node="a1", rank=2)


def ranks(*changes: dict[str, object]) -> tuple[RankStatus, ...]:
    """Two a node, on a1, a2 …, each with these changes."""
    return tuple(
        RankStatus(
            **{"rank": i, "node": f"a{i // 2 + 1}", "local_rank": i % 2, "pid": 100 + i, "state": "running"} | change  # type: ignore[arg-type]
        )
        for i, change in enumerate(changes)
    )


FOUR = ranks(
    {"step": 5, "state": "killed", "shell_code": 137},
    {"step": 4, "state": "stalled"},
    {"step": 4, "state": "exited", "shell_code": 1},
    {"step": 6, "state": "killed", "shell_code": 137, "stopped_by_supervisor": True},
)
TWO_NODES: dict[str, object] = {"nodes": ("a1", "a2"), "nnodes": (2, 3), "rank_list": FOUR, "incident": INCIDENT}


def knowing(run: RunStatus) -> "Daemon":
    """A script of this run, which once had eight ranks, in a fleet of one node more."""

    def script(request: Request) -> Sequence[Step]:
        match request:
            case Resolve():
                return [Done(run=RUN)]
            case GetStatus():
                return [Statuses(runs=(run,))]
            case GetNodes():
                return [
                    Nodes(nodes=tuple(NodeStatus(node=n, state="ready", address="h", port=1) for n in ("a1", "a3")))
                ]
            case Watch(logs=None):
                detail: dict[str, str | int | float | bool | None] = {"ranks": 8, "nodes": 4}
                lost: dict[str, str | int | float | bool | None] = {"node": "gone"}
                events = [("generation.launched", detail), ("node.lost", lost)]
                return [
                    *(
                        EventRecord(id=1, wall_s=1.0, run=RUN, generation=0, kind=k, text="", detail=d)
                        for k, d in events
                    ),
                    End(),
                ]
            case _:
                return [End()]

    return script  # type: ignore[return-value]


def choosers(fake: FakeDaemon) -> list[str | None]:
    return [request.logs.chooser for request in fake.requests if isinstance(request, Watch) and request.logs]


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("root", "2"),
        ("failed", "0,2"),
        ("stalled", "1"),
        ("behind", "1-2"),
        ("a1,!behind", "a1,!1-2"),
        ("!failed", "!0,!2"),
        ("local:0,a2/local:1", "local:0,a2/local:1"),
        ("a[1-2]", "a[1-2]"),
    ],
)
def test_words_are_told_as_numbers_and_the_rest_as_it_is(supctl: Supctl, daemon: Daemon, text: str, sent: str) -> None:
    fake = daemon(knowing(a_run(**TWO_NODES)))
    assert supctl("logs", "-r", text).code == 0
    assert choosers(fake) == [sent]


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("-r", "7"), 3),
        (("-r", "0-7"), 3),
        (("-r", "7", "--gen", "0"), 0),
        (("-r", "7", "--gen", "all"), 0),
        (("-r", "7", "-f"), 0),
        (("-r", "8", "--gen", "all"), 3),
        (("-r", "a1/local:7"), 3),
        (("-r", "a1/local:7", "--gen", "all"), 0),
        (("-r", "a3"), 3),
        (("-r", "a[1-3]"), 3),
        (("-r", "a3", "-f"), 0),
        (("-r", "gone", "--gen", "all"), 0),
        (("-r", "a4", "-f"), 3),
    ],
)
def test_what_the_run_does_not_have_is_an_error_unless_another_generation_may_have_it(
    supctl: Supctl, daemon: Daemon, argv: tuple[str, ...], code: int
) -> None:
    final = {"state": "succeeded", "is_final": True}
    daemon(knowing(a_run(**TWO_NODES, **final, generation=1)))
    result = supctl("logs", *argv)
    assert (result.code, bool(result.err)) == (code, code != 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a1/local:7", "error[C009]: -r a1/local:7: hello@1a2b3c has no such rank"),
        ("0,!0", "error[C009]: -r 0,!0: hello@1a2b3c has no such rank"),
        ("9", "error[C009]: no rank 9 in hello@1a2b3c: it has ranks 0-3"),
        ("0,gpu-9/local:1", "error[C009]: no node gpu-9 in hello@1a2b3c: it is on a1, a2"),
    ],
)
def test_the_error_names_what_is_not_there(supctl: Supctl, daemon: Daemon, text: str, said: str) -> None:
    daemon(knowing(a_run(**TWO_NODES)))
    assert supctl("logs", "-r", text).err.splitlines()[0] == said


def test_a_word_that_means_no_rank_is_an_error_that_says_so(supctl: Supctl, daemon: Daemon) -> None:
    quiet = ranks({"step": 3}, {"step": 3}, {}, {})
    daemon(knowing(a_run(nodes=("a1", "a2"), nnodes=(2, 2), rank_list=quiet)))
    for word in ("root", "failed", "stalled", "behind"):
        result = supctl("logs", "-r", word)
        assert (result.code, f"-r {word}: {RUN} has no " in result.err) == (3, True)


@pytest.mark.parametrize(
    ("text", "shown"), [("a2", "2 3"), ("local:1", "1 3"), ("failed", "0 2"), ("a1,!0", "1"), ("all", "0 1 2 3")]
)
def test_ps_has_the_same_words(supctl: Supctl, daemon: Daemon, text: str, shown: str) -> None:
    daemon(knowing(a_run(**TWO_NODES)))
    assert [line.split()[0] for line in supctl("ps", "-r", text).out.splitlines()[1:]] == shown.split()


def test_following_ranks_of_every_size_does_not_wait_for_the_ranks(supctl: Supctl, daemon: Daemon) -> None:
    waiting = a_run(state="starting", ranks=None, generation=None, has_started=False, nodes=())
    over = Statuses(runs=(a_run(is_final=True, state="succeeded"),))

    def script(request: Request) -> Sequence[Step]:
        return [over, End()] if isinstance(request, Watch) else knowing(waiting)(request)  # type: ignore[return-value]

    fake = daemon(script)
    assert supctl("logs", "-f", "-r", "local:0").code == 0
    assert len([request for request in fake.requests if isinstance(request, Watch)]) == 1


@pytest.mark.parametrize(
    ("numbers", "text"), [([3], "3"), ([7, 1, 2, 3], "1-3,7"), ([0, 1], "0-1"), ([0, 2, 4], "0,2,4")]
)
def test_neighbours_are_folded(numbers: list[int], text: str) -> None:
    assert numbers_text(numbers) == text
