"""supervisor/logs/reader.py and gunzip.py"""

import gzip
import struct
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.job import LogsTable
from supervisor.logs import log_file
from supervisor.logs.gunzip import RAW_BYTES, Gunzip
from supervisor.logs.log_file import LogFile
from supervisor.logs.paths import gz_path, part_path, parts
from supervisor.logs.reader import BLOCK_BYTES, GUNZIP_BYTES, LOOK_BACK_BYTES_MAX, Piece, StreamTail
from supervisor.logs.times import times_path


def rest_of(tail: StreamTail) -> bytes:
    """All that is left, which nothing is missing of."""
    data = b""
    while (piece := tail.read(1 << 20)).data:
        assert piece.offset + len(piece.data) == tail.offset
        data += piece.data
    return data


def spread(live: Path, content: bytes, cuts: list[int], gzipped: int) -> None:
    """Write a stream in several files, the oldest ones gzipped."""
    places = [0, *sorted({cut for cut in cuts if 0 < cut < len(content)})]
    for number, (start, end) in enumerate(zip(places, [*places[1:], len(content)], strict=True)):
        is_newest = start == places[-1]
        path = live if is_newest else part_path(live, start)
        path.write_bytes(content[start:end])
        if not is_newest and number < gzipped:
            zip_up(path)


def zip_up(path: Path) -> None:
    """As the keeper does."""
    new = path.with_name("new")
    new.write_bytes(gzip.compress(path.read_bytes(), 1))
    new.rename(gz_path(path))
    path.unlink()


CUTS = st.lists(st.integers(0, 3 * BLOCK_BYTES), max_size=4)


def test_a_stream_is_read_forward_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "rank"
    tail = StreamTail(path)
    assert (tail.end(), rest_of(tail)) == (0, b"")  # it is not there yet
    path.write_bytes(b"one\ntwo")
    assert tail.end() == 7
    assert tail.read(5) == Piece(0, b"one\nt", ((0, 0.0),)) or tail.offset == 5
    with path.open("ab") as file:
        file.write(b"\n")
    assert rest_of(tail) == b"wo\n"
    assert (tail.end(), rest_of(tail)) == (8, b"")


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([b"\n", b"a", b"bc", b"x" * (BLOCK_BYTES - 1), b"y" * (2 * BLOCK_BYTES)]), max_size=12),
    st.integers(0, 6),
    CUTS,
    st.integers(0, 3),
)
def test_reading_begins_at_the_last_lines_wherever_blocks_and_files_end(
    pieces: list[bytes], lines: int, cuts: list[int], gzipped: int
) -> None:
    content = b"".join(pieces)
    all_lines = content.splitlines(keepends=True)
    expected = b"".join(all_lines[len(all_lines) - min(lines, len(all_lines)) :])
    if lines == 0:  # a line that is being written is read from its start
        expected = b"".join(all_lines[-1:]) if not content.endswith(b"\n") else b""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank"
        spread(path, content, cuts, gzipped)
        assert rest_of(StreamTail(path, from_end_lines=lines)) == expected


PIECES = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from([b"a\n", b"bc\n", b"d", b"e\nf", b"x" * 50, b"\n"])), max_size=20
)


@settings(deadline=None)
@given(PIECES, st.none() | st.integers(1, 5), st.none() | st.integers(1, 5), st.none() | st.integers(0, 3))
def test_a_time_is_cut_out_in_whole_lines_however_often_the_file_was_rotated(
    written: list[tuple[int, bytes]], since: int | None, until: int | None, lines: int | None
) -> None:
    """A line counts for the time of the byte that ended it."""
    stamps, content, now = [], b"", 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank"
        file = LogFile(path, lambda: None, LogsTable(max_file_bytes=12))
        for _, data in written:
            now += 1.0
            file.write(data, [(0, now)])
            content += data
            stamps += [now] * len(data)
        file.close()
        expected, begin = [], 0
        for end in [*(at + 1 for at, byte in enumerate(content) if byte == ord("\n")), len(content)]:
            read_s = stamps[end - 1] if end else 0.0
            is_in = (since is None or read_s >= since) and (until is None or read_s < until)
            if end > begin and is_in:
                expected.append(content[begin:end])
            begin = end
        if lines == 0:
            expected = [line for line in expected if not line.endswith(b"\n")]
        elif lines is not None:
            expected = expected[max(len(expected) - lines, 0) :]
        tail = StreamTail(path, from_end_lines=lines, since_s=since, until_s=until)
        end = tail.end()
        data = b""
        while tail.offset < end and (piece := tail.read(min(7, end - tail.offset))).data:
            data += piece.data
            assert [read_s for at, read_s in piece.marks if at == piece.offset] == [stamps[piece.offset]]
        assert data == b"".join(expected)


def test_what_is_not_kept_any_more_is_a_jump(tmp_path: Path) -> None:
    path = tmp_path / "rank"
    spread(path, b"0123456789abcdef", [4, 8, 12], 1)
    part_path(path, 4).unlink()
    tail = StreamTail(path)
    assert [(piece.offset, piece.data) for piece in (tail.read(3), tail.read(9), tail.read(9), tail.read(9))] == [
        (0, b"012"),
        (3, b"3"),
        (8, b"89ab"),
        (12, b"cdef"),
    ]
    assert StreamTail(path, from_end_lines=1).offset == 8


def test_the_last_lines_of_a_huge_line_are_not_looked_for_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "rank"
    with path.open("wb") as file:
        file.truncate(4 * LOOK_BACK_BYTES_MAX)
    tail = StreamTail(path, from_end_lines=1)
    assert tail.end() - tail.offset == LOOK_BACK_BYTES_MAX


@pytest.mark.parametrize("how", ["renamed", "removed", "emptied"])
def test_a_file_that_somebody_takes_away_is_read_on_where_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(log_file, "CHECK_EVERY_S", 0.0)
    path = tmp_path / "rank"
    file = LogFile(path, lambda: None)
    file.write(b"one\n", [(0, 1.0)])
    tail = StreamTail(path)
    assert (tail.end(), rest_of(tail)) == (4, b"one\n")
    file.write(b"lost\n", [(0, 2.0)])
    match how:
        case "renamed":
            path.rename(tmp_path / "old")
        case "removed":
            path.unlink()
        case _:
            path.write_bytes(b"")
    file.write(b"two, longer than all before\n", [(0, 3.0)])
    file.close()
    tail.end()
    piece = tail.read(100)
    assert (piece.data, piece.marks) == (b"two, longer than all before\n", ((piece.offset, 3.0),))
    assert piece.offset + len(piece.data) == tail.offset == tail.end()


def test_a_gzipped_file_that_is_damaged_ends_there(tmp_path: Path) -> None:
    path = tmp_path / "rank"
    content = b"".join(b"%d\n" % number for number in range(100_000))
    spread(path, content, [len(content) - 10], 1)
    packed = gz_path(part_path(path, 0))
    packed.write_bytes(packed.read_bytes()[:-1000])
    tail = StreamTail(path)
    data = b""
    while (piece := tail.read(BLOCK_BYTES)).offset < len(content) - 10:
        data += piece.data
    assert content.startswith(data)
    assert len(data) > len(content) // 2
    assert piece.data == content[-10:]


def test_gzipped_files_that_were_put_behind_each_other_are_read_as_one(tmp_path: Path) -> None:
    content = bytes(range(256)) * 2000
    (tmp_path / "x.gz").write_bytes(gzip.compress(content, 1) + gzip.compress(b"more"))
    packed = Gunzip(tmp_path / "x.gz")
    data = b""
    while more := packed.read(RAW_BYTES):
        data += more
    assert data == content + b"more"
    assert packed.offset == len(data)
    assert len(data) < GUNZIP_BYTES


def test_no_byte_is_lost_or_doubled_while_files_are_rotated_and_gzipped(tmp_path: Path) -> None:
    """Tiny files, of which many come and go between two reads."""
    path = tmp_path / "rank"
    content = b"".join(b"line %d\n" % number for number in range(60_000))
    file = LogFile(path, lambda: None, LogsTable(max_file_bytes=2000))
    has_ended = threading.Event()

    def write() -> None:
        for number, at in enumerate(range(0, len(content), 997)):
            file.write(content[at : at + 997], [(0, 1.0 + number)])
            if number % 3 == 0:
                for part in parts(path)[:-1]:  # the newest one stays plain, as the keeper has it
                    if not part.is_gz:
                        zip_up(part.path)
        file.close()
        has_ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    got, last_s = b"", 0.0
    tail = StreamTail(path)
    try:
        while not (has_ended.is_set() and tail.offset == len(content)):
            piece = tail.read(1500)
            assert not piece.data or piece.offset == len(got)
            got += piece.data
            for at, read_s in piece.marks:
                assert read_s == 0.0 or read_s == 1.0 + at // 997
                last_s = max(last_s, read_s)
            assert content.startswith(got[-3000:], max(len(got) - 3000, 0))
    finally:
        writer.join()
    assert got == content
    assert last_s > 1.0


# --- where the start of the newest file is not known -------------------------------------------------------------


@pytest.mark.parametrize(
    "index", [b"", b"torn", struct.pack("<QQ", 1 << 63 | 700, 0), None], ids=["empty", "torn", "of another", "none"]
)
def test_a_file_whose_index_does_not_say_its_start_begins_where_the_newest_part_ends(
    tmp_path: Path, index: bytes | None
) -> None:
    """As a full disk leaves it. The first part is not there: the folder was another one's, behind a mount."""
    live = tmp_path / "rank"
    for start, content in ((700, b"x" * 99 + b"\n"), (800, b"one\ntwo\n")):
        part_path(live, start).write_bytes(content)
    live.write_bytes(b"")
    if index is not None:
        times_path(live).write_bytes(index)
    tail = StreamTail(live, from_end_lines=1)
    assert (tail.offset, rest_of(tail), tail.end()) == (804, b"two\n", 808)
    live.write_bytes(b"three\n")
    assert (rest_of(tail), StreamTail(live).end()) == (b"three\n", 814)
    assert StreamTail(live, since_s=1.0).offset >= 0
