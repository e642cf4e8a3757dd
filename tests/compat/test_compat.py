"""What earlier versions wrote is still read: frames of runners, coordinators and supctl, records, journals.

Recorded files are never written again. After adding one to samples.py: RECORD_COMPAT=1 python -m pytest tests/compat
"""

import os
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from protocol.errors import RemoteProtocolError
from protocol.framing import FrameDecoder, encode_frame
from protocol.messages import encode
from protocol.messages.member import Hello, Renewal, decode_to_coordinator
from protocol.versions import VERSIONS, agreed
from tests.compat.samples import VERSION_1

FOLDER = Path(__file__).parent
RECORDED = {f"v1/{name}.frames": samples for name, samples in VERSION_1.items()}


@pytest.mark.parametrize("name", RECORDED)
def test_what_was_recorded_is_read_as_it_was_meant(name: str) -> None:
    decode, samples = RECORDED[name]
    path = FOLDER / name
    if os.environ.get("RECORD_COMPAT") and not path.exists():
        path.write_bytes(b"".join(encode_frame(encode(sample)) for sample in samples))
    assert [decode(frame) for frame in FrameDecoder().feed(path.read_bytes())] == samples


@pytest.mark.parametrize("name", RECORDED)
def test_what_we_write_now_is_read_back_as_it_was(name: str) -> None:
    decode, samples = RECORDED[name]
    assert [decode(encode(sample)) for sample in samples] == samples


def test_every_struct_and_every_field_was_recorded_with_a_value_of_its_own() -> None:
    """Else its disappearance, or a new name for it, would go unseen."""
    told: dict[type[msgspec.Struct], set[str]] = {}
    for _, samples in RECORDED.values():
        for struct in (found for sample in samples for found in structs_in(sample)):
            own = {f.name for f in msgspec.structs.fields(struct) if getattr(struct, f.name) not in defaults(f)}
            told.setdefault(type(struct), set()).update(own)
    silent = {f"{kind.__name__}.{name}" for kind, own in told.items() for name in set(kind.__struct_fields__) - own}
    assert silent == WITHOUT_A_CHOICE
    assert {kind for struct in told for kind in mentioned(struct)} <= set(told)


WITHOUT_A_CHOICE = {
    "JobSpec.schema",
    "NodeRecord.version",
    "Record.version",
    "RestartTable.policy",  # the other one would leave the rest of the table without sense
    "RunRecord.version",
    "RunTable.module",  # excludes `script` and `command`, which are there
}


def defaults(field: msgspec.structs.FieldInfo) -> list[object]:
    """The field's default, if it has one."""
    if field.default_factory is not msgspec.NODEFAULT:
        return [field.default_factory()]
    return [] if field.default is msgspec.NODEFAULT else [field.default]


def structs_in(value: object) -> Iterator[msgspec.Struct]:
    """A struct and all the structs below it."""
    match value:
        case msgspec.Struct():
            yield value
            for field in value.__struct_fields__:
                yield from structs_in(getattr(value, field))
        case tuple():
            for item in value:
                yield from structs_in(item)
        case dict():
            for item in value.values():
                yield from structs_in(item)
        case _:
            pass


def mentioned(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    """Every struct that the fields of a struct can hold."""
    open_ends: list[Any] = list(get_type_hints(kind).values())
    while open_ends:
        hint = open_ends.pop()
        if isinstance(hint, types.GenericAlias | types.UnionType):
            open_ends += get_args(hint)
        elif isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            yield hint


# --- versions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "ours", "version"),
    [
        ((1,), (1,), 1),
        ((1, 2), (2, 3), 2),  # an older runner, a newer supd
        ((2, 3), (1, 2), 2),  # the other way round
        ((2, 1), (1, 2), 2),  # the highest, in whatever order
        ((1,), (2, 3), None),
        ((), (1,), None),
    ],
)
def test_two_sides_speak_the_highest_version_that_both_know(
    theirs: tuple[int, ...], ours: tuple[int, ...], version: int | None
) -> None:
    assert agreed(theirs, ours) == version


def test_we_speak_at_most_two_versions_that_follow_each_other_and_have_a_recording_of_each() -> None:
    assert VERSIONS in [tuple(range(first, VERSIONS[-1] + 1)) for first in (VERSIONS[-1], VERSIONS[-1] - 1)]
    for version in VERSIONS:
        assert list((FOLDER / f"v{version}").glob("*.frames"))


def test_a_hello_of_a_version_to_come_is_understood_well_enough_to_be_answered() -> None:
    hello = {
        "type": "Hello",
        "versions": [7, 8],
        "fleet": "f",
        "node": "n",
        "run": "r",
        "incarnation": "i",
        "witness_port": 4000,
    }
    said = decode_to_coordinator(encode(hello))
    assert said == Hello(versions=(7, 8), fleet="f", node="n", run="r", incarnation="i")
    assert agreed(said.versions) is None


def test_a_message_or_a_part_of_a_version_to_come_is_refused() -> None:
    for unknown in ({"type": "WordAge", "about": "n"}, {"type": "Renewal", "number": 1, "part": "fenced"}):
        with pytest.raises(RemoteProtocolError):
            decode_to_coordinator(encode(unknown))


def test_a_renewal_of_the_first_release_without_any_later_field_is_whole() -> None:
    assert decode_to_coordinator(b"\x82\xa4type\xa7Renewal\xa6number\x05") == Renewal(number=5)
