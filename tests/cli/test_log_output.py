"""supctl logs --no-prefix, --raw and --json: bytes as they were written, in pipes and on terminals; what is missing."""

import itertools
import json
import random
import re

import pytest

from protocol.messages.control import End, LogChunk, Notice, Statuses
from supervisor.cli.log_lines import MAX_LINE_BYTES
from tests.cli.conftest import Daemon, Supctl, a_run, one_run
from tests.cli.json_check import problems_of_all
from tests.cli.test_log_lines import HARMFUL


def chunk(
    data: bytes,
    rank: int = 0,
    stream: str = "out",
    generation: int = 0,
    offset: int = 0,
    *,
    skipped: int = 0,
    removed: int = 0,
    node: str = "n1",
    local_rank: int = -1,
) -> LogChunk:
    return LogChunk(
        generation=generation,
        node=node,
        rank=rank,
        stream=stream,
        data=data,
        offset=offset,
        skipped_lines=skipped,
        removed_bytes=removed,
        local_rank=local_rank,
    )


def cut(data: bytes, draws: random.Random) -> list[LogChunk]:
    """The same bytes in chunks."""
    at = sorted({0, len(data), *(draws.randrange(len(data)) for _ in range(5))})
    return [chunk(data[a:b], offset=a) for a, b in itertools.pairwise(at)]


@pytest.mark.parametrize("option", ["--raw", "--no-prefix"])
@pytest.mark.parametrize("seed", range(5))
def test_bytes_of_one_stream_come_as_they_were_however_they_are_cut(
    supctl: Supctl, daemon: Daemon, option: str, seed: int
) -> None:
    draws = random.Random(seed)
    data = bytes(draws.choices(b"a\n\r\0\t\x1b", k=3000)) + "é │ 日本\n".encode() * 50 + b"z" * (3 << 20) + b"end\n"
    daemon(one_run(a_run(), *cut(data, draws), End()))
    assert supctl("logs", option, "-r", "0", "--stream", "out").out.encode() == data


def test_raw_adds_nothing_not_even_an_end_of_line(supctl: Supctl, daemon: Daemon) -> None:
    pieces = [chunk(b"ha"), chunk(b"\x1b[2J", 1, "err"), chunk(b"lf", offset=2), chunk(b"", 2, offset=9)]
    daemon(one_run(a_run(), *pieces, End()))
    for is_tty in (False, True):
        assert supctl("logs", "--raw", is_tty=is_tty).out == "ha\x1b[2Jlf"


def test_lines_of_two_ranks_are_never_joined(supctl: Supctl, daemon: Daemon) -> None:
    long = b"y" * MAX_LINE_BYTES
    pieces = [chunk(b"ha"), chunk(b"b\n", 1), chunk(b"lf\n"), chunk(long), chunk(b"c\n", 1), chunk(b"z\nd")]
    daemon(one_run(a_run(), *pieces, chunk(b"e\n", generation=1), End()))
    assert supctl("logs", "--no-prefix").out.encode() == b"b\nhalf\n" + long + b"\nc\nz\nd\ne\n"


def test_without_a_prefix_a_terminal_gets_nothing_that_could_harm_it(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run(), chunk(b"10%\r20%\x1b[2J\n\x1b[31mred\n"), End()))
    assert supctl("logs", "--no-prefix", is_tty=True).out == "20%\n\x1b[31mred\x1b[0m\n"
    assert supctl("logs", "--no-prefix").out == "10%\r20%\x1b[2J\n\x1b[31mred\n"


def test_json_on_a_terminal_has_no_control_character_and_is_the_same_object(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run(), chunk("\x1b[2J\x9b2J\x7f\x00│\n".encode()), End()))
    on_terminal, piped = supctl("logs", "--json", is_tty=True).out, supctl("logs", "--json").out
    assert json.loads(on_terminal) == json.loads(piped)
    assert on_terminal.rstrip("\n").isprintable()


def test_the_places_of_json_lines_follow_on_one_another(supctl: Supctl, daemon: Daemon) -> None:
    pieces = [
        chunk(b"ab\nc", offset=10, local_rank=0),
        chunk(b"d\n\n", offset=14, local_rank=0),
        chunk(b"e", offset=17),
    ]
    daemon(one_run(a_run(), *pieces, chunk(b"x\n", 5, "err", 1, node="n2", local_rank=1), End()))
    result = supctl("logs", "--json")
    lines = [json.loads(line) for line in result.out.splitlines()]
    assert problems_of_all("log-line", result.out.splitlines()) == []
    assert [(line["seq"], line["line"]) for line in lines] == [(10, "ab"), (13, "cd"), (16, ""), (17, "e"), (0, "x")]
    assert [line["seq"] + len(line["line"]) + 1 for line in lines[:3]] == [line["seq"] for line in lines[1:4]]
    assert [*lines[-1]] == ["ts", "job", "run", "gen", "node", "rank", "local_rank", "stream", "seq", "line"]
    assert (lines[-1]["gen"], lines[-1]["node"], lines[-1]["local_rank"]) == (1, "n2", 1)


def test_what_is_missing_is_told_in_the_view_where_it_is_missing(supctl: Supctl, daemon: Daemon) -> None:
    pieces = [
        chunk(b"a\ntor"),
        chunk(b"b\n", offset=5000, skipped=1204),
        chunk(b"", 3, "err", offset=3 << 20, removed=3 << 20),
        chunk(b"c\n", 3, "err", offset=3 << 20, skipped=1),
    ]
    daemon(one_run(a_run(), *pieces, End()))
    assert supctl("logs", "-r", "all").out.splitlines()[1:] == [
        "0 │ a",
        "0 │ tor",
        "sup │ 1,204 lines of rank 0 not shown (in file: supctl logs --path -r 0)",
        "0 │ b",
        "sup │ 3.0 MiB of rank 3 (stderr) are not kept any more",
        "sup │ 1 line of rank 3 not shown (in file: supctl logs --path -r 3)",
        "3 ┃ c",
    ]


@pytest.mark.parametrize("option", ["--raw", "--no-prefix", "--json"])
def test_elsewhere_what_is_missing_is_told_on_stderr(supctl: Supctl, daemon: Daemon, option: str) -> None:
    daemon(one_run(a_run(), chunk(b"a\ntor"), chunk(b"b\n", offset=900, removed=895), Notice(text="n2 is away"), End()))
    result = supctl("logs", option)
    assert result.err.splitlines() == ["895 bytes of rank 0 (stdout) are not kept any more", "n2 is away"]
    lines = {"--raw": "a\ntorb\n", "--no-prefix": "a\ntor\nb\n"}
    if option == "--json":
        assert [json.loads(line)["seq"] for line in result.out.splitlines()] == [0, 2, 900]
    else:
        assert result.out == lines[option]


@pytest.mark.parametrize(
    "argv", [(), ("-f",), ("--no-prefix",), ("--json",), ("--dedupe", "--timestamps"), ("--grep", "m")]
)
def test_no_form_but_raw_lets_a_rank_do_more_to_a_terminal_than_show_text(
    supctl: Supctl, daemon: Daemon, argv: tuple[str, ...]
) -> None:
    lines = [b"harm " + line for line in HARMFUL.values()]
    pieces = [chunk(b"\n".join(lines)), *(chunk(line + b"\n", 1, "err") for line in lines)]
    bars = [chunk(b"\r" + line + b"harm\r", 2) for line in lines]
    over = Statuses(runs=(a_run(state="failed", is_final=True, reason="\x1b[2J"),))
    daemon(one_run(a_run(), *pieces, *bars, Notice(text="away \x1b[2J"), over, End()))
    result = supctl("logs", *argv, is_tty=True)
    ours = re.compile(r"\r\x1b\[K|\x1b\[[0-9;]*m")
    assert result.code == 0
    assert result.out.count("harm") > len(lines)
    for line in ours.sub("", result.out + result.err).split("\n"):
        assert line.replace("\t", "").isprintable(), line
