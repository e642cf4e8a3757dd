"""`supctl logs`: whose line it is, what happened in between, and nothing that could harm a terminal or a pipe."""

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from protocol import notes
from protocol.messages.control import (
    End,
    EventRecord,
    Incident,
    LogChunk,
    RankStatus,
    Statuses,
    Watch,
)
from tests.cli.conftest import Daemon, Supctl, a_run, one_run

RUN = "hello@1a2b3c"
VIEW = "showing rank 0, errors of all, events (all: -r all)"


def chunk(
    data: bytes,
    rank: int = 0,
    stream: str = "out",
    generation: int = 0,
    node: str = "n1",
    times: tuple[tuple[int, float], ...] = (),
) -> LogChunk:
    return LogChunk(generation=generation, node=node, rank=rank, stream=stream, data=data, times=times)


def event(text: str, generation: int = 0, kind: str = "generation.ended", wall_s: float = 1.0) -> EventRecord:
    return EventRecord(id=1, wall_s=wall_s, run=RUN, generation=generation, kind=kind, text=text)


def test_on_one_node_the_prefix_is_the_rank_and_the_bar_tells_the_stream(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run(ranks=12), chunk(b"a\n"), chunk(b"b\n", 11, "err"), event("ran 1.0 s"), End()))
    result = supctl("logs")
    assert result.code == 0
    assert result.out.splitlines() == [
        f"── hello generation 0 · 12 ranks · {VIEW} ──",
        "0  │ a",
        "11 ┃ b",
        "sup │ ran 1.0 s",
    ]


def test_on_several_nodes_the_prefix_names_the_node(supctl: Supctl, daemon: Daemon) -> None:
    run = a_run(nodes=("n1", "gpu-02"), nnodes=(2, 2))
    daemon(one_run(run, chunk(b"a\n"), chunk(b"b\n", 3, node="gpu-02"), event("x"), End()))
    assert supctl("logs").out.splitlines()[1:] == ["n1:0     │ a", "gpu-02:3 │ b", "     sup │ x"]


def test_without_utf_8_everything_of_ours_is_ascii(
    supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANG", "en_US.ISO-8859-1")
    daemon(one_run(a_run(), chunk("é→\n".encode()), chunk(b"b\n", 1, "err"), End()))
    result = supctl("logs", encoding="iso-8859-1")
    assert result.out.splitlines() == [f"-- hello generation 0 - 4 ranks - {VIEW} --", "0 | é->", "1 ! b"]
    assert supctl("wait", "nosuch", encoding="iso-8859-1").err.splitlines()[-1] == "-> supctl status"


def test_in_the_c_locale_symbols_are_ascii_although_python_writes_utf_8(
    supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    daemon(one_run(a_run(), chunk(b"a\n"), End()))
    assert supctl("logs").out.isascii()


@pytest.mark.parametrize(
    ("flags", "environ", "is_tty", "has_colour"),
    [
        ([], {}, True, True),
        ([], {}, False, False),
        ([], {"NO_COLOR": "1"}, True, False),
        ([], {"TERM": "dumb"}, True, False),
        ([], {"FORCE_COLOR": "1"}, False, True),
        (["--color", "always"], {"NO_COLOR": "1"}, False, True),
        (["--color", "never"], {}, True, False),
    ],
)
def test_colour_is_for_terminals_and_as_asked_for(
    supctl: Supctl,
    daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    environ: dict[str, str],
    is_tty: bool,
    has_colour: bool,
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    daemon(one_run(a_run(), chunk(b"\x1b[31ma\x1b[2J\n"), End()))
    out = supctl("logs", *flags, is_tty=is_tty).out
    assert ("\x1b[31ma\x1b[0m" in out, "\x1b" in out, "\x1b[2J" in out) == (has_colour, has_colour, False)


def test_no_prefix_gives_the_lines_as_they_were_written_and_nothing_else(supctl: Supctl, daemon: Daemon) -> None:
    data = b"10%\r20%\x1b[2J\nhalf"
    fake = daemon(one_run(a_run(), chunk(data), chunk(b"b\n", 1, "err"), End()))
    result = supctl("logs", "--no-prefix")
    assert result.out.encode() == b"10%\r20%\x1b[2J\nb\nhalf\n"
    assert [request.events for request in fake.requests if isinstance(request, Watch)] == [False]


def test_json_is_one_object_a_line(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run(), chunk(b"a\nb\xff", 2, "err"), End()))
    first, second = [json.loads(line) for line in supctl("logs", "--json").out.splitlines()]
    assert first == {
        "ts": None,
        "job": "hello",
        "run": RUN,
        "gen": 0,
        "node": "n1",
        "rank": 2,
        "local_rank": None,
        "stream": "stderr",
        "seq": 0,
        "line": "a",
    }
    assert (second["seq"], second["line"]) == (2, "b�")


def test_following_goes_on_over_a_restart_and_ends_with_the_outcome(supctl: Supctl, daemon: Daemon) -> None:
    text = "rank 1 on n1 (pid 4711) exited with code 1"
    found = notes.opened(Incident(number=1, generation=0, cause="exit", summary=text, node="n1", rank=1, shell_code=1))
    opened = EventRecord(id=2, wall_s=4e9, run=RUN, generation=0, kind=found.kind, text=text, detail=found.detail)
    daemon(
        one_run(
            a_run(),
            chunk(b"a\n"),
            event("before", wall_s=1.0),
            msgspec.structs.replace(opened, wall_s=1.0),
            opened,
            event("generation 0 ended", wall_s=4e9),
            chunk(b"b\n", generation=1),
            Statuses(runs=(a_run(state="failed", is_final=True, generation=1, reason="budget"),)),
            End(),
        )
    )
    result = supctl("logs", "-f")
    assert result.code == 0
    assert result.out.splitlines() == [
        f"── hello generation 0 · 4 ranks · {VIEW} ──",
        "0 │ a",
        "sup │ before",
        f"sup │ incident opened: {text}",  # before we came: a line as in the past
        "sup │ incident #1",
        f"sup │   {text}",
        "sup │   generation 0 · exit 1",
        "sup │ generation 0 ended",
        "── generation 1 ──",
        "0 │ b",
        "── hello@1a2b3c failed: budget ──",
    ]


def test_events_of_other_generations_are_left_out(supctl: Supctl, daemon: Daemon) -> None:
    run = a_run(generation=2)
    daemon(one_run(run, event("old", generation=1), event("new", generation=2), End()))
    assert "old" not in supctl("logs").out
    assert supctl("logs", "--gen", "-1").out.splitlines() == [f"── hello generation 1 · {VIEW} ──", "sup │ old"]
    rules = [f"── hello generation 1 · {VIEW} ──", "── generation 2 · 4 ranks ──"]
    assert supctl("logs", "--gen", "all").out.splitlines() == [rules[0], "sup │ old", rules[1], "sup │ new"]


def launched(generation: int, ranks: int = 4, nodes: int = 1) -> EventRecord:
    text = f"generation {generation}: {ranks} ranks"
    detail: dict[str, str | int | float | bool | None] = {"ranks": ranks, "nodes": nodes}
    return EventRecord(
        id=1, wall_s=1.0, run=RUN, generation=generation, kind="generation.launched", text=text, detail=detail
    )


def test_reading_the_past_each_generation_has_one_rule_and_what_the_supervisor_did_stands_where_it_came(
    supctl: Supctl, daemon: Daemon
) -> None:
    run = a_run(generation=3, state="succeeded", is_final=True)
    first = [launched(0, 2), event("seen", kind="rank.stalled"), chunk(b"a\nhalf"), event("x")]
    silent = [launched(1, 1), event("y", 1), launched(2, 1)]
    last = [chunk(b"b\n", generation=3), event("z", 3, "job.succeeded")]
    fake = daemon(one_run(run, *first, *silent, *last, End()))
    shown = supctl("logs", "--gen", "all").out.splitlines()
    assert shown == [
        f"── hello generation 0 · 2 ranks · {VIEW} ──",
        "sup │ rank stalled: seen",
        "0 │ a",
        "sup │ x",
        "0 │ half",
        "── generation 1 · 1 rank ──",
        "sup │ y",
        "── generation 3 · 4 ranks ──",
        "0 │ b",
        "sup │ job succeeded: z",
        "── hello@1a2b3c succeeded ──",
    ]
    assert supctl("logs", "--gen", "all", "--grep", "^a").out.splitlines() == ["── generation 0 · 2 ranks ──", shown[2]]
    assert all(request.events for request in fake.requests if isinstance(request, Watch))


def test_following_a_generation_begins_with_its_rule(supctl: Supctl, daemon: Daemon) -> None:
    run = a_run()
    daemon(
        one_run(
            run,
            chunk(b"a\n"),
            msgspec.structs.replace(launched(1), wall_s=4e9),
            chunk(b"b\n", generation=1),
            Statuses(runs=(a_run(state="succeeded", is_final=True, generation=1),)),
            End(),
        )
    )
    assert supctl("logs", "-f").out.splitlines()[:5] == [
        f"── hello generation 0 · 4 ranks · {VIEW} ──",
        "0 │ a",
        "── generation 1 · 4 ranks ──",
        "sup │ generation 1: 4 ranks",
        "0 │ b",
    ]


# --- progress bars -----------------------------------------------------------------------------------------------


def follow(monkeypatch: pytest.MonkeyPatch, *steps: float | LogChunk) -> Callable[[Supctl, Daemon], list[str]]:
    """What a follower is shown of these chunks; a number is seconds that pass before the next one."""
    waits: list[float] = [0.0]
    chunks = []
    for step in steps:
        if isinstance(step, LogChunk):
            chunks.append(step)
            waits.append(0.0)
        else:
            waits[-1] += step
    over = Statuses(runs=(a_run(state="succeeded", is_final=True),))

    def shown(supctl: Supctl, daemon: Daemon) -> list[str]:
        daemon(one_run(a_run(), *chunks, over, End()))
        clock = itertools.accumulate([1000.0 + waits[0], *waits[1:], *itertools.repeat(0.0, 10)])
        monkeypatch.setattr("supervisor.cli.story.boot_s", lambda: next(clock))
        return supctl("logs", "-f", "-r", "0").out.splitlines()

    return shown


def test_a_follower_sees_the_state_of_a_progress_bar_once_a_second_and_its_last_one_once(
    supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = follow(
        monkeypatch,
        chunk(b"no bar"),
        chunk(b"\n 1%|"),
        chunk(b"\r 2%|\r 3%|"),
        0.5,
        chunk(b"\r 4%|"),
        0.6,
        chunk(b"\r 5%|\r"),
        2.0,
        chunk(b"\r"),
        2.0,
        chunk(b"\r100%|"),
        0.1,
        chunk(b"\ndone\n"),
        chunk(b"a\r 6%|"),
        0.1,
        chunk(b"\r 7%|"),
    )
    assert shown(supctl, daemon) == [
        "── generation 0 · 4 ranks ──",
        "0 │ no bar",
        *("0 │  3%|", "0 │  5%|", "0 │ 100%|"),
        "0 │ done",
        *("0 │  6%|", "0 │  7%|"),
        "── hello@1a2b3c succeeded ──",
    ]


def test_the_bytes_of_a_progress_bar_are_left_alone_where_they_are_wanted(supctl: Supctl, daemon: Daemon) -> None:
    over = Statuses(runs=(a_run(state="succeeded", is_final=True),))
    daemon(one_run(a_run(), chunk(b"\r 1%|"), chunk(b"\r 2%|"), over, End()))
    assert supctl("logs", "-f", "--no-prefix").out.encode() == b"\r 1%|\r 2%|\n"


# --- times and patterns ------------------------------------------------------------------------------------------

NOON_S = 1_800_014_400.0  # 2027-01-15T12:00:00Z


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A node an hour ahead of UTC."""
    monkeypatch.setenv("TZ", "CET-1")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_time_stamps_are_local_or_in_utc_and_blank_where_the_time_is_not_known(supctl: Supctl, daemon: Daemon) -> None:
    data = chunk(b"old\na\n", times=((4, NOON_S + 0.1234),))
    daemon(one_run(a_run(), data, event("ran 1.0 s", wall_s=NOON_S + 1), End()))
    assert supctl("logs", "--timestamps").out.splitlines()[1:] == [
        "             0 │ old",
        "13:00:00.123 0 │ a",
        "13:00:01.000 sup │ ran 1.0 s",
    ]
    assert "2027-01-15T12:00:00.123Z 0 │ a" in supctl("logs", "--timestamps", "--utc").out
    assert [json.loads(line)["ts"] for line in supctl("logs", "--json").out.splitlines()] == [
        None,
        "2027-01-15T12:00:00.123Z",
    ]


@pytest.mark.usefixtures("berlin")
def test_a_prefix_is_as_its_template_says(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run(), chunk(b"a\n", 3, "err", 2, times=((0, NOON_S),)), End()))
    result = supctl("logs", "--prefix", "{time} {node}:{rank:02} {local_rank}/{gen}/{stream} {{x}} ")
    assert result.out.splitlines()[1:] == ["13:00:00.000 n1:03 3/2/err {x} a"]


def test_a_pattern_is_tried_on_the_line_as_it_is_shown(supctl: Supctl, daemon: Daemon) -> None:
    data = b"loss 1\n\x1b[31mloss\x1b[0m 2\n10%\rloss 3\nloss 3\rdone\nnothing\n"
    daemon(one_run(a_run(), chunk(data), chunk(b"nothing\n", generation=1), event("x"), End()))
    found = ["── generation 0 · 4 ranks ──", "0 │ loss 1", "0 │ loss 2", "0 │ loss 3"]
    assert supctl("logs", "--grep", r"^loss \d$").out.splitlines() == found
    assert supctl("logs", "--grep", "loss", "--exclude", "[12]").out.splitlines() == [found[0], found[3]]
    assert "nothing" not in supctl("logs", "--exclude", "nothing").out
    raw = supctl("logs", "--grep", "loss [23]", "--no-prefix").out
    assert raw.encode() == b"\x1b[31mloss\x1b[0m 2\n10%\rloss 3\n"


def test_a_pattern_that_nothing_holds_is_told_and_no_error(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run(), chunk(b"a\n"), End()))
    result = supctl("logs", "--grep", "x")
    assert (result.code, result.out, result.err) == (0, "", "no line of a rank holds 'x'\n")


@pytest.mark.parametrize("form", ["--no-prefix", "--json"])
def test_with_a_pattern_the_last_lines_are_the_last_that_match_of_each_stream(
    supctl: Supctl, daemon: Daemon, form: str
) -> None:
    first = chunk(b"x1\nx2\nx3\ny\ny\ny\n")
    daemon(one_run(a_run(), first, chunk(b"x4\ny\n", 1, "err"), chunk(b"x5\nx6", generation=1), End()))
    out = supctl("logs", "--grep", "x", "-n", "2", form).out
    assert re.findall("x[0-9]", out) == ["x2", "x3", "x4", "x5", "x6"]


def test_events_of_another_time_are_left_out(supctl: Supctl, daemon: Daemon) -> None:
    events = [event(text, wall_s=wall_s) for text, wall_s in (("one", 99.0), ("two", 100.0), ("three", 200.0))]
    daemon(one_run(a_run(), *events, End()))
    result = supctl("logs", "--since", "1970-01-01T00:01:40Z", "--until", "1970-01-01T00:03:20Z")
    assert result.out.splitlines()[1:] == ["sup │ two"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--since", "5s"], "no lines since 5s\n"),
        (["--since", "2h", "--until", "1h"], "no lines since 2h until 1h\n"),
        (["--grep", "x", "--since", "5s"], "no line of a rank holds 'x'\n"),
        ([], ""),
    ],
)
def test_that_there_are_no_lines_of_a_time_is_told(supctl: Supctl, daemon: Daemon, flags: list[str], said: str) -> None:
    daemon(one_run(a_run(), End()))
    result = supctl("logs", *flags)
    assert (result.code, result.out, result.err) == (0, "", said)


def test_a_prefix_can_have_pids_of_the_generations_that_were_seen(supctl: Supctl, daemon: Daemon) -> None:
    def ranks(first_pid: int) -> tuple[RankStatus, ...]:
        return tuple(RankStatus(rank=i, node="n1", local_rank=i, pid=first_pid + i, state="running") for i in range(2))

    begin, again = (a_run(generation=g, rank_list=ranks(100 * (g + 1))) for g in (0, 1))
    told = [chunk(b"a\n"), Statuses(runs=(again,)), chunk(b"b\n", 1), chunk(b"c\n", 1, generation=1)]
    daemon(one_run(begin, *told, chunk(b"d\n", 7, generation=1), End()))
    result = supctl("logs", "--prefix", "{gen} {pid:>4} ", "--gen", "all")
    assert [line for line in result.out.splitlines() if "──" not in line] == [
        "0  100 a",
        "0  101 b",
        "1  201 c",
        "1    ? d",
    ]


def test_a_node_has_one_colour_and_its_ranks_differ_in_brightness(supctl: Supctl, daemon: Daemon) -> None:
    pieces = [
        LogChunk(generation=0, node=node, rank=rank, stream="out", data=b"x\n", local_rank=rank % 4)
        for rank, node in enumerate(["a"] * 4 + ["b"] * 4)
    ]
    daemon(one_run(a_run(nodes=("a", "b"), nnodes=(2, 2), ranks=8), *pieces, End()))
    lines = supctl("logs", "--color", "always").out.splitlines()[1:]
    styles = [line.partition("\x1b[")[2].partition("m")[0] for line in lines]
    assert styles == ["36;1", "36", "36;2", "36;1", "32;1", "32", "32;2", "32;1"]


@pytest.mark.parametrize("argv", [(), ("--timestamps", "--utc"), ("--prefix", "{time} {rank} ")])
def test_lines_printed_all_at_once_look_like_lines_printed_one_by_one(
    supctl: Supctl, daemon: Daemon, argv: tuple[str, ...]
) -> None:
    plain = chunk(b"a\n\tb\n\nc\n", times=((2, NOON_S), (6, NOON_S + 1)))
    daemon(one_run(a_run(), plain, End()))
    at_once = supctl("logs", "-r", "all", *argv).out
    assert at_once == supctl("logs", "-r", "all", "--exclude", "nothing", *argv).out
    assert len(at_once.splitlines()) == 5
