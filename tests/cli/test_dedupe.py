"""supctl logs --dedupe: what many ranks say alike is shown once, and told of the others."""

import pytest

from protocol.messages.control import End, LogChunk, Statuses
from supervisor.cli import dedupe
from supervisor.cli.dedupe import Dedupe
from supervisor.cli.log_lines import Line, Source
from tests.cli.conftest import Daemon, Supctl, a_run, one_run

NOON_S = 1_800_014_400.0


def source(rank: int, generation: int = 0, stream: str = "out") -> Source:
    return Source(generation, "n1", rank, stream)


def pick(picker: Dedupe, rank: int, *texts: str, at_s: float = NOON_S, stream: str = "out") -> list[str]:
    lines = [Line(text.encode(), at_s) for text in texts]
    return [line.data.decode() for line in picker.pick(source(rank, stream=stream), lines)]


def test_a_line_of_other_ranks_within_two_seconds_is_shown_once_and_then_told() -> None:
    picker = Dedupe()
    assert pick(picker, 3, "warn") == ["warn"]
    assert [pick(picker, rank, "warn", at_s=NOON_S + 1.9) for rank in (0, 1, 2, 7)] == [[]] * 4
    assert picker.told() == []
    assert pick(picker, 5, "warn", at_s=NOON_S + 2.1) == ["warn"]
    assert picker.told() == ["the same line from 4 more ranks: 0-2,7 · warn"]
    assert picker.told(is_last=True) == []


def test_lines_that_the_same_ranks_say_are_told_together() -> None:
    picker = Dedupe()
    for rank in (0, 1):
        pick(picker, rank, "Traceback", "  File", "ValueError")
    pick(picker, 0, "only me")
    assert picker.told(is_last=True) == ["the same 3 lines from 1 more rank: 1 · Traceback"]


def test_what_a_rank_says_twice_is_shown_twice() -> None:
    picker = Dedupe()
    assert pick(picker, 0, "tick", "tick") == ["tick", "tick"]
    assert pick(picker, 1, "tick", "tick") == ["tick"]  # its second one follows on its first


def test_streams_and_generations_are_told_apart() -> None:
    picker = Dedupe()
    assert pick(picker, 0, "x") == ["x"]
    assert pick(picker, 1, "x", stream="err") == ["x"]
    assert picker.pick(source(2, generation=1), [Line(b"x", NOON_S)]) != []


def test_where_no_times_are_known_the_clock_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(dedupe, "boot_s", lambda: now_s[0])
    picker = Dedupe()
    long = "y" * 1000
    assert pick(picker, 0, long, at_s=0.0) == [long]
    now_s[0] += 1
    assert pick(picker, 1, long, at_s=0.0) == []
    now_s[0] += 2
    assert picker.told() == [f"the same line from 1 more rank: 1 · {'y' * 39}…"]


def test_a_follower_is_told_by_the_clock_where_nothing_more_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(dedupe, "boot_s", lambda: now_s[0])
    picker = Dedupe()
    pick(picker, 0, "x")
    pick(picker, 1, "x")
    now_s[0] += 3
    assert picker.told() == []
    assert picker.told(is_idle=True) == ["the same line from 1 more rank: 1 · x"]


def test_no_more_lines_are_remembered_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedupe, "LINES_MAX", 2)
    picker = Dedupe()
    assert pick(picker, 0, "a", "b", "c") == ["a", "b", "c"]
    assert pick(picker, 1, "a", "c") == ["a"]


@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_the_view_tells_who_else_wrote_a_line(supctl: Supctl, daemon: Daemon, follow: tuple[str, ...]) -> None:
    chunks = [LogChunk(generation=0, node="n1", rank=rank, stream="err", data=b"warn\n") for rank in range(4)]
    rest = LogChunk(generation=0, node="n1", rank=1, stream="out", data=b"b")
    over = a_run(state="succeeded", is_final=True)
    daemon(one_run(a_run(), *chunks, rest, Statuses(runs=(over,)), End()))
    assert supctl("logs", "--dedupe", "-r", "all", *follow).out.splitlines() == [
        "── generation 0 · 4 ranks ──",
        "0 ┃ warn",
        "1 │ b",
        "sup │ the same line from 3 more ranks: 1-3 · warn",
        "── hello@1a2b3c succeeded ──",
    ]
