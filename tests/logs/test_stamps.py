"""supervisor/logs/stamps.py"""

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from protocol.job import LogsTable
from supervisor.logs.log_file import LogFile
from supervisor.logs.stamps import Stamper
from supervisor.logs.times import Times


def test_each_line_begins_with_the_time_at_which_its_first_byte_was_read(tmp_path: Path) -> None:
    path = tmp_path / "rank"
    file = LogFile(path, lambda: None, LogsTable(timestamps=True))
    file.write(b"one\ntwo", [(0, 1.0)])
    file.write(b" goes on\n\nthree\rfour", [(0, 2.0), (10, 3.5)])
    file.write(b"\n")
    file.close()
    stamps = [f"1970-01-01T00:00:0{time_s}Z " for time_s in ("1.000", "1.000", "2.000", "3.500")]
    texts = ["one\n", "two goes on\n", "\n", "three\rfour\n"]
    assert path.read_bytes().decode() == "".join(stamp + text for stamp, text in zip(stamps, texts, strict=True))
    with Times(path) as times:
        assert times.between(0, 1000) == [(0, 1.0), (25 + 4 + 25 + 3, 2.0), (25 * 3 + 4 + 12 + 1, 3.5)]


@given(st.lists(st.binary(max_size=20).map(lambda data: data.replace(b"7", b"\n")), max_size=20))
def test_nothing_but_stamps_is_added_and_no_line_goes_without(pieces: list[bytes]) -> None:
    stamper = Stamper()
    stamped = b"".join(bytes(stamper.stamp(piece, [(0, 1.0)] if piece else [])[0]) for piece in pieces)
    whole = b"".join(pieces)
    assert re.sub(rb"(?m)^1970-01-01T00:00:01\.000Z ", b"", stamped) == whole
    assert stamped.count(b"1970-01-01T") == whole.count(b"\n") + (whole[-1:] not in (b"", b"\n"))
