"""Followers live through restarts of supd: they say so once, and go on where they were."""

import os
from collections.abc import Sequence

import pytest

from protocol.messages.control import (
    Done,
    End,
    EventRecord,
    Failure,
    GetStatus,
    LogChunk,
    LogPlace,
    LogSelection,
    Request,
    Resolve,
    Statuses,
    Watch,
)
from supervisor.cli import watching
from tests.cli.conftest import Daemon, FakeDaemon, Script, Step, Supctl, a_run

RUN = "hello@1a2b3c"
OVER = Statuses(runs=(a_run(state="succeeded", is_final=True),))
AWAY = Failure(code="F110", message="the coordinator of this fleet at a:1 does not answer", exit_code=69)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes between attempts."""
    monkeypatch.setattr(watching, "RETRY_MIN_S", 0.001)


def connections(*played: Sequence[Step]) -> Script:
    """A script that plays these steps for one Watch after the other."""
    left = iter(played)

    def script(request: Request) -> Sequence[Step]:
        match request:
            case Resolve():
                return [Done(run=RUN)]
            case GetStatus():
                return [Statuses(runs=(a_run(),))]
            case _:
                return next(left)

    return script


def chunk(data: bytes, offset: int = 0, rank: int = 0, generation: int = 0, stream: str = "out") -> LogChunk:
    return LogChunk(generation=generation, node="n1", rank=rank, stream=stream, data=data, offset=offset)


def event(number: int, text: str) -> EventRecord:
    return EventRecord(id=number, wall_s=4e9, run=RUN, generation=0, kind="restart.decided", text=text)


def watches(fake: FakeDaemon) -> list[Watch]:
    return [request for request in fake.requests if isinstance(request, Watch)]


def test_a_follower_goes_on_behind_what_it_has_printed_or_holds_as_an_unfinished_line(
    supctl: Supctl, daemon: Daemon
) -> None:
    first = [Statuses(runs=(a_run(),)), chunk(b"a\nb\nha"), chunk(b"x\n", 7, 3, stream="err"), event(5, "seen"), None]
    second = [chunk(b"lf\n", 6), event(6, "new"), chunk(b"y\n", 9, 3, stream="err"), OVER, End()]
    fake = daemon(connections(first, second))
    result = supctl("logs", "-f", "-n", "7", "-r", "all")
    assert result.code == 0
    assert result.out.splitlines() == [
        "── generation 0 · 4 ranks ──",
        *("0 │ a", "0 │ b", "3 ┃ x", "sup │ restart decided: seen"),
        *("0 │ half", "sup │ restart decided: new", "3 ┃ y"),
        "── hello@1a2b3c succeeded ──",
    ]
    begin, again = watches(fake)
    assert (begin.known, begin.after_event) == ((), -1)
    assert again.logs == LogSelection(chooser="all", tail_lines=None, may_skip=True)
    assert (again.known, again.after_event) == (
        (
            LogPlace(generation=0, rank=0, stream="out", offset=6),
            LogPlace(generation=0, rank=3, stream="err", offset=9),
        ),
        5,
    )
    assert result.err.splitlines()[0].startswith("… waiting for supd to be back: supd at ")
    assert result.err.splitlines()[1:] == ["… supd is back"]


def test_places_of_generations_that_are_over_are_forgotten(supctl: Supctl, daemon: Daemon) -> None:
    pieces = [chunk(b"a\n"), chunk(b"b\n", 0, 1), chunk(b"c\n", generation=1), chunk(b"d\n", generation=2)]
    late = [chunk(b"e\n", 2, generation=1), chunk(b"f\n", 2)]
    fake = daemon(connections([Statuses(runs=(a_run(),)), *pieces, *late, None], [OVER, End()]))
    supctl("logs", "-f")
    assert [(place.generation, place.offset) for place in watches(fake)[1].known] == [(1, 4), (2, 2)]


def test_where_a_stream_begins_is_known_without_a_line_of_it(supctl: Supctl, daemon: Daemon) -> None:
    fake = daemon(connections([Statuses(runs=(a_run(),)), chunk(b"", 700, 2), None], [OVER, End()]))
    assert supctl("logs", "-f").out.splitlines() == ["── hello@1a2b3c succeeded ──"]
    assert watches(fake)[1].known == (LogPlace(generation=0, rank=2, stream="out", offset=700),)


def test_a_follower_that_has_had_nothing_asks_for_all_from_its_generation_on(supctl: Supctl, daemon: Daemon) -> None:
    fake = daemon(connections([Statuses(runs=(a_run(generation=3),)), None], [OVER, End()]))
    supctl("logs", "-f", "-n", "0")
    assert watches(fake)[1].known == (LogPlace(generation=3, rank=0, stream="out", offset=0),)


@pytest.mark.parametrize("argv", [("wait",), ("events", "-f"), ("logs", "-f"), ("logs", "-f", "--json")])
@pytest.mark.parametrize("end", [None, AWAY, End()], ids=["gone", "host away", "stopped"])
def test_who_looks_on_waits_for_supd_says_so_once_and_ends_with_the_outcome(
    supctl: Supctl, daemon: Daemon, argv: tuple[str, ...], end: Step
) -> None:
    begin = Statuses(runs=(a_run(),))
    daemon(connections([begin, end], [AWAY], [None], [begin, end], [begin, OVER, End()]))
    result = supctl(*argv)
    assert result.code == 0
    told = [line for line in result.err.splitlines() if line.startswith("…")]
    assert [line.partition(":")[0] for line in told] == ["… waiting for supd to be back", "… supd is back"] * 2


def test_while_the_socket_is_not_there_it_is_waited_for(supctl: Supctl, daemon: Daemon, address: str) -> None:
    hidden = f"{address}-away"
    back: list[bool] = []

    def tell(_text: str) -> None:
        if not back:
            back.append(True)
            os.rename(hidden, address)

    def script(request: Request) -> Sequence[Step]:
        if isinstance(request, Watch) and not back:
            os.rename(address, hidden)
            return [Statuses(runs=(a_run(),)), None]
        return [*connections([OVER, End()])(request)]

    daemon(script)
    from supervisor.cli.client import Client

    client = Client(address, tell)
    replies = [reply for reply in watching.Watching(client, tell, Watch(run=RUN, follow=True)).replies() if reply]
    assert replies == [Statuses(runs=(a_run(),)), OVER]


def test_a_run_that_a_supd_without_its_journal_does_not_know_yet_is_asked_for_again(
    supctl: Supctl, daemon: Daemon
) -> None:
    unknown = Failure(code="F102", message=f"no run or job {RUN}", exit_code=3)
    daemon(connections([Statuses(runs=(a_run(),)), None], [unknown], [unknown], [OVER, End()]))
    assert supctl("wait").code == 0


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (Failure(code="F102", message="no run", exit_code=3), 3),
        (Failure(code="F040", message="the output cannot be read", exit_code=1), 1),
        (AWAY, 69),
        (None, 69),
    ],
)
def test_what_is_refused_at_first_is_an_error_at_once(supctl: Supctl, daemon: Daemon, answer: Step, code: int) -> None:
    daemon(connections([answer]))
    assert supctl("logs", "-f").code == code


def test_what_is_refused_later_for_another_reason_ends_it(supctl: Supctl, daemon: Daemon) -> None:
    unreadable = Failure(code="F040", message="the output cannot be read: Input/output error", exit_code=1)
    daemon(connections([Statuses(runs=(a_run(),)), chunk(b"a\n"), None], [unreadable]))
    result = supctl("logs", "-f")
    assert (result.code, result.out.splitlines()[1:]) == (1, ["0 │ a"])


def test_a_wait_gives_up_in_time_also_while_supd_is_away(supctl: Supctl, daemon: Daemon, address: str) -> None:
    def script(request: Request) -> Sequence[Step]:
        if isinstance(request, Watch):
            os.unlink(address)
            return [Statuses(runs=(a_run(),)), None]
        return [*connections()(request)]

    daemon(script)
    assert supctl("wait", "--timeout", "50ms").code == 124
