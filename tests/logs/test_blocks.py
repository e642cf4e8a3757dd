"""supervisor/logs/blocks.py"""

from pathlib import Path

from supervisor.logs.blocks import TOGETHER_S, BlockReader
from supervisor.logs.log_file import LogFile


def write(path: Path, *pieces: tuple[float, bytes]) -> None:
    """A log file whose pieces were read at these times."""
    file = LogFile(path, lambda: None)
    for read_s, data in pieces:
        file.write(data, [(0, read_s)])
    file.close()


def blocks(path: Path, *, since_s: float | None = None, until_s: float | None = None) -> list[tuple[float, bytes]]:
    """All blocks, each with its place in the order of time."""
    reader = BlockReader(path, tail_lines=None, since_s=since_s, until_s=until_s)
    reader.look()
    found: list[tuple[float, bytes]] = []
    while True:
        while reader.lacks_block:
            reader.fill(5)
        if not reader.blocks:
            reader.end_line()
        if not reader.blocks:
            return found
        while reader.blocks:
            block = reader.blocks.popleft()
            found.append((block.key_s, block.data))


def test_a_line_has_the_time_of_its_end(tmp_path: Path) -> None:
    path = tmp_path / "rank"
    write(path, (1.0, b"one\ntw"), (2.0, b"o\nthree\n"), (3.0, b"fo"), (4.0, b"ur"))
    assert blocks(path) == [(1.0, b"one\n"), (2.0, b"two\n"), (2.0, b"three\n"), (4.0, b"four")]


def test_a_time_is_cut_out_in_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "rank"
    write(path, (1.0, b"one\ntw"), (2.0, b"o\nthree\n"), (3.0, b"four\n"))
    assert blocks(path, since_s=1.5) == [(2.0, b"two\n"), (2.0, b"three\n"), (3.0, b"four\n")]
    assert blocks(path, since_s=1.5, until_s=3.0) == [(2.0, b"two\n"), (2.0, b"three\n")]
    assert blocks(path, until_s=2.0) == [(1.0, b"one\n")]
    assert blocks(path, since_s=3.1) == []
    assert blocks(path, until_s=0.5) == []


def test_a_traceback_that_took_a_little_longer_stays_together(tmp_path: Path) -> None:
    path = tmp_path / "rank"
    traceback = ((1.0, b"Traceback:\n"), (1.02, b"  line 7\n"), (1.04, b"ValueError\n"), (1.06, b"\n"))
    write(path, *traceback, (1.2, b"next\n"), (1.22, b"other\n"))
    assert blocks(path) == [(1.0, data) for _, data in traceback] + [(1.2, b"next\n"), (1.22, b"other\n")]


def test_a_program_that_indents_every_line_is_not_one_block_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "rank"
    write(path, *((1 + number / 25, b" %d\n" % number) for number in range(60)))
    keys = {key_s for key_s, _ in blocks(path)}
    assert keys == {1.0, 1.0 + TOGETHER_S, 1.0 + 2 * TOGETHER_S}


def test_a_clock_that_is_set_back_does_not_change_the_order_of_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "rank"
    write(path, (5.0, b"one\n"), (2.0, b"two\n"), (6.0, b"three\n"))
    assert blocks(path) == [(5.0, b"one\n"), (5.0, b"two\n"), (6.0, b"three\n")]
