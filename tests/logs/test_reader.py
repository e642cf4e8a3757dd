"""supervisor/logs/reader.py"""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.logs.reader import BLOCK_BYTES, LOOK_BACK_BYTES_MAX, FileTail


def rest_of(tail: FileTail) -> bytes:
    return tail.read(1 << 30)


def test_a_file_is_read_forward_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "rank"
    tail = FileTail(path)
    assert (tail.unread_bytes(), rest_of(tail)) == (0, b"")  # it is not there yet
    path.write_bytes(b"one\ntwo")
    assert tail.unread_bytes() == 7
    assert tail.read(5) == b"one\nt"
    assert tail.unread_bytes() == 2
    with path.open("ab") as file:
        file.write(b"\n")
    assert rest_of(tail) == b"wo\n"
    assert (tail.unread_bytes(), rest_of(tail)) == (0, b"")


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([b"\n", b"a", b"bc", b"x" * (BLOCK_BYTES - 1), b"y" * (2 * BLOCK_BYTES)]), max_size=12),
    st.integers(0, 6),
)
def test_reading_begins_at_the_last_lines_wherever_blocks_end(pieces: list[bytes], lines: int) -> None:
    content = b"".join(pieces)
    all_lines = content.splitlines(keepends=True)
    expected = b"".join(all_lines[len(all_lines) - min(lines, len(all_lines)) :])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank"
        path.write_bytes(content)
        assert rest_of(FileTail(path, from_end_lines=lines)) == expected


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([b"\n", b"a\n", b"bc\n", b"x" * (BLOCK_BYTES - 1), b"y" * 10]), max_size=8),
    st.none() | st.integers(0, 2 * BLOCK_BYTES),
    st.none() | st.integers(0, 2 * BLOCK_BYTES),
    st.none() | st.integers(0, 3),
)
def test_a_part_of_a_file_is_read_in_whole_lines(
    pieces: list[bytes], start: int | None, end: int | None, lines: int | None
) -> None:
    content = b"".join(pieces)
    ends = [at + 1 for at, byte in enumerate(content) if byte == ord("\n")]
    if content and not content.endswith(b"\n"):
        ends.append(len(content))
    begins = [0, *ends[:-1]]
    chosen = [
        content[a:b]
        for a, b in zip(begins, ends, strict=False)
        if start is not None and b > start and (end is None or end >= len(content) or b <= end)
    ]
    if lines is not None:
        chosen = chosen[max(len(chosen) - lines, 0) :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank"
        path.write_bytes(content)
        tail = FileTail(path, from_end_lines=lines, start=start, end=end)
        assert tail.read(tail.unread_bytes()) == b"".join(chosen)


def test_the_last_lines_of_a_huge_line_are_not_looked_for_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "rank"
    with path.open("wb") as file:
        file.truncate(4 * LOOK_BACK_BYTES_MAX)
    assert FileTail(path, from_end_lines=1).unread_bytes() == LOOK_BACK_BYTES_MAX


def test_a_file_made_again_or_cut_off_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "rank"
    path.write_bytes(b"one\n")
    tail = FileTail(path)
    tail.unread_bytes()
    rest_of(tail)
    path.rename(tmp_path / "old")
    path.write_bytes(b"two, longer\n")
    assert tail.unread_bytes() == 12
    assert rest_of(tail) == b"two, longer\n"
    path.write_bytes(b"3\n")
    assert tail.unread_bytes() == 2
    assert rest_of(tail) == b"3\n"
