import re
import struct
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from protocol.job import PHASE_BYTES_MAX
from supervisor.worker import page

DOCS = Path(__file__).parents[2] / "docs/heartbeat.md"
SAMPLE = struct.pack("<4sIQqII32s", b"supd", 1, 7, 40, 4711, page.DONE, b"checkpoint")


def test_a_blank_page_shows_no_beat_and_no_step() -> None:
    beat = page.read(page.blank())
    assert beat is not None
    assert (beat.count, beat.step, beat.pid, beat.phase, beat.is_done) == (0, None, 0, "", False)
    assert page.is_known(page.blank())


def test_a_page_shows_what_is_in_it() -> None:
    beat = page.read(SAMPLE)
    assert beat is not None
    assert (beat.count, beat.step, beat.pid, beat.phase, beat.is_done) == (7, 40, 4711, "checkpoint", True)


def test_a_job_may_name_every_phase_that_a_page_can_show() -> None:
    assert PHASE_BYTES_MAX == page.PHASE_BYTES


def test_the_documented_offsets_are_those_of_the_layout() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\w+) \|", DOCS.read_text(), re.MULTILINE)
    fields = {name: SAMPLE[int(offset) : int(offset) + int(size)] for offset, size, name in rows}
    assert sum(int(size) for _, size, _ in rows) == page.SIZE
    assert all(int(offset) % min(int(size), 8) == 0 for offset, size, _ in rows), "a field is not aligned"
    assert fields.pop("magic") == page.MAGIC
    assert fields.pop("phase") == b"checkpoint".ljust(page.PHASE_BYTES, b"\0")
    assert {name: int.from_bytes(content, "little") for name, content in fields.items()} == {
        "version": page.VERSION,
        "count": 7,
        "step": 40,
        "pid": 4711,
        "flags": page.DONE,
    }


def test_another_magic_version_or_size_is_not_a_page_to_write_to() -> None:
    for strange in (b"", page.blank()[:-1], page.blank() + b"\0", b"S" + SAMPLE[1:], SAMPLE[:4] + b"\2" + SAMPLE[5:]):
        assert not page.is_known(strange)


@given(st.one_of(st.binary(max_size=80), st.binary(min_size=page.SIZE, max_size=page.SIZE)))
def test_whatever_bytes_are_in_a_page_it_can_be_read_and_shown(content: bytes) -> None:
    beat = page.read(content)
    assert (beat is None) == (len(content) != page.SIZE)
    if beat is not None:
        assert beat.step is None or beat.step >= 0
        assert beat.phase.isprintable()
        assert len(beat.phase) <= page.PHASE_BYTES


@given(st.text())
def test_a_phase_comes_back_as_it_was_named_or_cut_between_two_characters(name: str) -> None:
    field = page.phase_field(name)
    assert len(field) == page.PHASE_BYTES
    beat = page.read(page.blank()[: -page.PHASE_BYTES] + field)
    assert beat is not None
    expected = "".join(c if c.isprintable() else "?" for c in name.partition("\0")[0])
    assert expected.startswith(beat.phase)
    assert beat.phase == expected or len(name.encode(errors="replace")) > page.PHASE_BYTES - 4
