"""Lines come out once and whole; bytes become text that is safe to print."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.messages.control import LogChunk
from supervisor.cli.log_lines import MAX_LINE_BYTES, Line, LineJoiner, Source, clean, plain, size_text

SOURCES = [Source(0, "n1", 0, "out"), Source(0, "n1", 0, "err"), Source(0, "n2", 1, "out"), Source(1, "n1", 0, "out")]


def chunk(source: Source, data: bytes) -> LogChunk:
    return LogChunk(generation=source.generation, node=source.node, rank=source.rank, stream=source.stream, data=data)


@given(
    texts=st.lists(st.binary(max_size=60).map(lambda b: b.replace(b"x", b"\n")), min_size=4, max_size=4),
    draws=st.randoms(use_true_random=False),
)
def test_any_chunking_by_any_mix_of_streams_gives_each_line_once_and_in_order(
    texts: list[bytes], draws: random.Random
) -> None:
    left = dict(zip(SOURCES, texts, strict=True))
    got: dict[Source, list[bytes]] = {source: [] for source in SOURCES}
    joiner = LineJoiner()
    while pending := [source for source in SOURCES if left[source]]:
        source = draws.choice(pending)
        size = draws.randint(1, len(left[source]))
        from_source, lines = joiner.feed(chunk(source, left[source][:size]))
        left[source] = left[source][size:]
        got[from_source] += [line.data for line in lines]
    for source, lines in joiner.finish():
        got[source] += [line.data for line in lines]
    for source, text in zip(SOURCES, texts, strict=True):
        expected = text.split(b"\n")
        assert got[source] == (expected if expected[-1] else expected[:-1])


def test_an_unfinished_line_is_held_back_until_the_stream_or_its_generation_is_over() -> None:
    joiner = LineJoiner()
    assert joiner.feed(chunk(SOURCES[0], b"half")) == (SOURCES[0], [])
    assert joiner.feed(chunk(SOURCES[3], b"other")) == (SOURCES[3], [])
    assert joiner.finish(before=1) == [(SOURCES[0], [Line(b"half")])]
    assert joiner.finish() == [(SOURCES[3], [Line(b"other")])]
    assert joiner.finish() == []


def test_a_line_has_the_time_at_which_its_end_was_read() -> None:
    joiner = LineJoiner()
    source, lines = joiner.feed(
        LogChunk(
            generation=0,
            node="n1",
            rank=0,
            stream="out",
            data=b"a\nb\nc\nd\nhalf",
            times=((2, 5.0), (4, 0.0), (6, 7.0)),
        )
    )
    assert lines == [Line(b"a", 0.0, 0), Line(b"b", 5.0, 2), Line(b"c", 0.0, 4), Line(b"d", 7.0, 6)]
    more = LogChunk(generation=0, node="n1", rank=0, stream="out", data=b" full\nand", times=((0, 9.0),), offset=12)
    assert joiner.feed(more) == (source, [Line(b"half full", 9.0, 8)])
    assert joiner.finish() == [(source, [Line(b"and", 9.0, 18)])]


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    joiner = LineJoiner()
    lines = [line for _ in range(40) for line in joiner.feed(chunk(SOURCES[0], b"y" * 65536))[1]]
    assert [len(line.data) for line in lines] == [MAX_LINE_BYTES, MAX_LINE_BYTES]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"plain\ttab", "plain\ttab"),
        (b"windows\r", "windows"),
        (b"10%\r50%\r100%\r", "100%"),
        (b"caf\xc3\xa9 \xff", "café �"),
        (b"\x1b]0;title\x07a\x1b[2Jb\x1b[1;1Hc\x07\x00d\x7f", "abcd"),
        (b"\x1b]52;c;ZXZpbA==\x1b\\x", "x"),
        (b"\xc2\x9b2Jx", "x"),
        (b"\x1bcx\x1b(Bx", "xx"),
        (b"\x1b]unterminated", ""),
        (b"\x1b[31mred\x1b[0m", "red"),
    ],
)
def test_nothing_but_text_and_tabs_reaches_the_terminal(line: bytes, text: str) -> None:
    assert clean(line, keeps_colour=False) == text


def test_colours_are_kept_where_wanted_and_end_with_their_line() -> None:
    assert clean(b"\x1b[31mred\x1b[2J", keeps_colour=True) == "\x1b[31mred\x1b[0m"


HARMFUL = {
    "clear the screen": b"\x1b[2J\x1b[H",
    "the other screen": b"\x1b[?1049h",
    "no cursor": b"\x1b[?25l",
    "scroll region": b"\x1b[1;2r",
    "reset": b"\x1bc",
    "line drawing": b"\x1b(0\x0e",
    "title": b"\x1b]0;owned\x07",
    "title, ended by ST": b"\x1b]2;owned\x1b\\",
    "clipboard": b"\x1b]52;c;cm0gLXJmIC8=\x07",
    "link": b"\x1b]8;;http://evil\x07",
    "answerback": b"\x05",
    "report what the cursor is": b"\x1b[6n",
    "report the title as input": b"\x1b[21t",
    "define a key": b"\x1bP1;1|17/0a\x1b\\",
    "a string without end": b"\x1b]0;" + b"x" * 1000,
    "C1 control sequence": "\x9b2J".encode(),
    "C1 string": "\x9d0;owned\x9c".encode(),
    "C1 as a byte": b"\x9b2J",
    "escape in an escape": b"\x1b\x1b[2J\x1b[\x1b[2J",
    "escape cut by NUL": b"\x1b\0[2J",
    "escape cut by a colour": b"\x1b\x1b[31m[2J",
    "colours with no colour": b"\x1b[31\x18;2J",
    "mouse": b"\x1b[?1000h",
    "paste": b"\x1b[?2004h",
    "backspaces": b"rm\x08\x08ls",
    "bell": b"\x07" * 10,
    "vertical": b"a\x0bb\x0cc\x84d\x85e",
    "DEL": b"\x7f",
    "turned around": "\u202egnol\u2066".encode(),
    "APC, PM, SOS": b"\x1b_a\x1b\\\x1b^b\x1b\\\x1bXc\x1b\\",
    "sixel": b"\x1bPq#0;2;0;0;0\x1b\\",
    "half a rune": b"\xe2\x94",
}


@pytest.mark.parametrize("line", HARMFUL.values(), ids=HARMFUL)
@pytest.mark.parametrize("keeps_colour", [False, True])
def test_nothing_harmful_reaches_the_terminal_but_colours_that_end_with_their_line(
    line: bytes, keeps_colour: bool
) -> None:
    text = clean(b"before " + line + b" \x1b[31mbehind", keeps_colour)
    bare = re.sub(r"\x1b\[[0-9;:]*m", "", text)
    assert keeps_colour or bare == text
    assert bare == text or text.endswith("\x1b[0m")
    assert all(c.isprintable() or c == "\t" for c in bare)
    assert plain(b"x\n" + line + b"\n") is None or line == b""


def test_what_is_printed_at_once_is_only_plain_text() -> None:
    assert plain("a\tb\n\né │ 日本\n".encode()) == "a\tb\n\né │ 日本"
    assert plain(b"no end") is None


@given(st.binary(max_size=80))
def test_whatever_is_taken_for_plain_needs_no_cleaning(data: bytes) -> None:
    text = plain(data + b"\n")
    if text is not None:
        assert text.split("\n") == [clean(line, keeps_colour=True) for line in data.split(b"\n")]


@pytest.mark.parametrize(
    ("size", "text"), [(1, "1 byte"), (1023, "1023 bytes"), (3 << 20, "3.0 MiB"), (5 << 40, "5.0 TiB")]
)
def test_sizes_are_as_exact_as_somebody_wants_to_know(size: int, text: str) -> None:
    assert size_text(size) == text


@given(st.binary(max_size=80))
def test_no_bytes_at_all_can_smuggle_a_control_character_through(line: bytes) -> None:
    assert all(c == "\t" or not ("\x00" <= c < " " or "\x7f" <= c <= "\x9f") for c in clean(line, keeps_colour=False))
