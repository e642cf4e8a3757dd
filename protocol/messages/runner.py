"""supd -> a ready runner, on its standard input; and what a runner leaves on disk for the next supd."""

from collections.abc import Callable

import msgspec

from protocol.messages import Message, decoder
from protocol.messages.member import Renewal


class TakeOn(Message, frozen=True):
    """The run a ready runner is to serve: the one frame it ever gets from supd."""

    run: str
    node: str
    fleet: str
    incarnation: str
    coordinator_file: str  # holds the coordinator's host:port; read again at every attempt to connect
    credential: str
    run_dir: str  # 0700; the record is kept here
    logs_dir: str  # <logs>/<run>
    orphan_wait_s: float
    linger_s: float
    address: str = "127.0.0.1"  # by which other nodes reach this one: rank 0's MASTER_ADDR
    witness_ports: tuple[int, int] | None = None  # from the first to the last one that it may listen on; None: any
    beats_dir: str = ""  # on a memory file system; the ranks' heartbeat pages are made there, and removed


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What a runner knew last, written before it is told to anyone, unless the disk takes longer than 0.1 s:
    `<run dir>/<incarnation>.record`.

    The next supd reads it when the runner is gone, so that runs which ended unseen are told truly.
    """

    version: int = 1
    run: str
    incarnation: str
    renewal: Renewal


decode_take_on: Callable[[bytes], TakeOn] = decoder(TakeOn)
decode_record: Callable[[bytes], Record] = decoder(Record)
