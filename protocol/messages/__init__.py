"""Wire structs, one file per pair of speakers.

    member     runner <-> coordinator, from its first frame on
    fleet      supd <-> the supd that hosts the coordinator, and supd <-> supd
    runner     supd -> a ready runner, and what a runner leaves on disk for the next supd
    control    supctl <-> supd

Every struct is tagged by `type`. New fields get defaults, names are never reused, unknown fields are
skipped and unknown tags are refused: a new message needs a new protocol version (docs/protocol.md).
"""

from collections.abc import Callable
from typing import Any

import msgspec

from protocol.errors import RemoteProtocolError


class Message(msgspec.Struct, frozen=True, tag=True, tag_field="type", kw_only=True):
    """Base of all wire messages."""


encode: Callable[[object], bytes] = msgspec.msgpack.Encoder().encode
"""One message as MessagePack, the payload of one frame."""


def decoder(kind: Any) -> Callable[[bytes], Any]:
    """A function from a frame's payload to a message of `kind`: a struct, or a union of them.

    It raises RemoteProtocolError for anything else, so that nonsense costs a peer its connection and no more.
    """
    decode = msgspec.msgpack.Decoder(kind).decode

    def decode_or_refuse(payload: bytes) -> Any:
        try:
            return decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise RemoteProtocolError(str(exc)) from exc

    return decode_or_refuse
