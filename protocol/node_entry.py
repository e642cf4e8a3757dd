"""One node in the node table: what is kept of it, what is known of it now, and how runs and people see that.

Times that are kept are of the wall clock, since a boot-time clock does not outlive a boot; here they are boot-time
seconds of the host. The machine of the table: fleet.py.
"""

import math
from collections.abc import Mapping

from msgspec.structs import replace

from protocol import upkeep
from protocol.coordinator_events import Draining, Note, RosterNode
from protocol.dataclass import dataclass, field
from protocol.fleet_events import Drain, Link, NodeRecord
from protocol.messages.control import NodeState, NodeStatus
from protocol.messages.fleet import Join

_LIFTED = "/undrained-"
"""Of the name of a start, before how often an operator has had the node used again."""


def is_lifted(before: str, now: str) -> bool:
    """Whether of these starts of a node's supd the later one is the same supd, which an operator has had used again."""
    return before.partition(_LIFTED)[0] == now.partition(_LIFTED)[0]


@dataclass(frozen=False)
class NodeEntry:
    """A node of the table."""

    record: NodeRecord
    link: Link | None = None
    number: int = 0  # of the candidate that it was
    heard_s: float = -math.inf
    may_come_until_s: float = -math.inf
    warnings: tuple[str, ...] = ()
    go_s: float = 0.0  # of its drain
    troubles_s: tuple[float, ...] = ()  # those of its record
    signals: Mapping[str, int] = field(default_factory=dict)  # that its supd was sent, as it has said to this host

    def read_times(self, now_s: float, wall_s: float) -> None:
        """Turn the times of its record, which comes from the journal, into boot-time seconds."""
        if self.record.drain is not None:
            self.go_s = now_s + (self.record.drain.go_wall_s - wall_s)
        self.troubles_s = tuple(now_s + min(0.0, at_wall_s - wall_s) for at_wall_s in self.record.troubles)

    def succeed(self, before: "NodeEntry") -> None:
        """It is the same node, which `before` was, by a newer connection or another start."""
        self.go_s = before.go_s
        self.troubles_s = before.troubles_s if self.record.troubles else ()
        if (before.record.identity, before.record.incarnation) == (self.record.identity, self.record.incarnation):
            self.signals = before.signals

    # --- upkeep: each returns what is told of it -----------------------------------------------------------------

    def drain(self, drain: Drain, now_s: float, wall_s: float) -> list[Note]:
        """An operator wants it free; a second wish stands for the first."""
        is_free = self.record.drain is not None and self.record.drain.is_free
        self.record = replace(self.record, drain=replace(drain, is_free=is_free))
        self.go_s = now_s + (drain.go_wall_s - wall_s)
        return [upkeep.draining(self.record.name, drain, max(0.0, self.go_s - now_s))]

    def undrain(self, by: str) -> list[Note]:
        """An operator wants it used again: what spoke against it is forgotten."""
        before, record = self.record, self.record
        forgiven = record.forgiven | record.signals  # as it has said to the host, or to the one before
        self.record = replace(record, drain=None, troubles=(), undrained=record.undrained + 1, forgiven=forgiven)
        self.go_s, self.troubles_s = 0.0, ()
        return [upkeep.undrained(before, by)]

    def hear_signals(self, signals: Mapping[str, int]) -> list[Note]:
        """Its supd says how often it was sent each. Only what it says itself is a notice: what is kept of it may be
        of a start that is over."""
        self.signals, self.record = signals, replace(self.record, signals=dict(signals))
        return []

    def trouble(self, now_s: float, wall_s: float) -> list[Note]:
        """The root of an incident was there."""
        old = upkeep.too_old(self.troubles_s, now_s)
        troubles = (*self.record.troubles[old:], wall_s)[-upkeep.TROUBLES_MAX :]
        self.record = replace(self.record, troubles=troubles)
        self.troubles_s = (*self.troubles_s[old:], now_s)[-upkeep.TROUBLES_MAX :]
        return []

    def see_ranks(self, *, has_ranks: bool) -> list[Note]:
        """Whether runs have ranks there: told once they have none, of a node that is to be free."""
        drain = self.record.drain
        if drain is None or drain.is_free is not has_ranks:
            return []
        self.record = replace(self.record, drain=replace(drain, is_free=not has_ranks))
        return [] if has_ranks else [upkeep.drained(self.record.name, drain)]

    # --- how it is seen ------------------------------------------------------------------------------------------

    @property
    def start(self) -> str:
        """Which start of its supd that is; one that an operator has had used again counts as another one."""
        record = self.record
        again = f"{_LIFTED}{record.undrained}" if record.undrained else ""
        return f"{record.identity}/{record.incarnation}{again}"

    @property
    def noticed(self) -> frozenset[str]:
        """Signals that its supd was sent since it was started, or used again."""
        forgiven = self.record.forgiven
        return frozenset(name for name, count in self.signals.items() if count > forgiven.get(name, 0))

    def roster_node(self, *, is_up: bool, may_come: bool) -> RosterNode:
        """How the runs see it."""
        record, drain = self.record, self.record.drain
        return RosterNode(
            record.name,
            is_up=is_up,
            may_come=may_come,
            joined=record.joined,
            labels=record.labels,
            slots=record.slots,
            max_jobs=record.max_jobs,
            start=self.start,
            drain=None if drain is None else Draining(drain.at_checkpoint, self.go_s, drain.by, drain.reason),
            signals=self.noticed,
            troubles=self.troubles_s,
        )

    def status(self, host: str, now_s: float, *, is_up: bool) -> NodeStatus:
        """How people see it, but for what runs have there."""
        record, drain = self.record, self.record.drain
        state = NodeState.READY if is_up else NodeState.UNREACHABLE
        notes = list(self.warnings if is_up else (self.absence(host),))
        if drain is not None:
            state = NodeState.DRAINED if drain.is_free else NodeState.DRAINING
            notes.insert(0, upkeep.wish(drain))
        if self.noticed:
            notes.append(f"its supd was sent {', '.join(sorted(self.noticed))}")
        return NodeStatus(
            node=record.name,
            state=state,
            address=record.address,
            port=record.port,
            is_host=record.name == host,
            clock_off_s=record.clock_off_s,
            seen_s=round(now_s - self.heard_s, 3) if math.isfinite(self.heard_s) else None,
            joined_wall_s=record.joined_wall_s,
            labels=record.labels,
            note="; ".join(notes),
            host=record.facts.host,
            boot_id=record.facts.boot_id,
            kernel=record.facts.kernel,
            python=record.facts.python,
            supd=record.facts.supd,
            cpus=record.facts.cpus,
            memory_bytes=record.facts.memory_bytes,
            devices=record.facts.devices,
            slots=None if record.slots is None else len(record.slots),
            max_jobs=record.max_jobs,
            drain_by="" if drain is None else drain.by,
            drain_reason="" if drain is None else drain.reason,
            is_drained=drain is not None and drain.is_free,
        )

    def absence(self, host: str) -> str:
        """Why it does not answer."""
        if self.link is not None:
            return "it is silent"
        if self.heard_s > -math.inf:
            return "its connection has ended"
        return f"it has not come back since supd on {host} started"


def record_of(join: Join, before: NodeRecord | None, joined: int, off_s: float, wall_s: float) -> NodeRecord:
    """What is kept of a node that joins; `before` is what was kept under its name, else it is number `joined`.

    A drain is of the name, its history of the state folder; of one start of that are its signals, and what an operator
    has forgiven of them.
    """
    is_folder = before is not None and before.identity == join.identity
    is_same = before is not None and is_folder and before.incarnation == join.incarnation
    return NodeRecord(
        name=join.node,
        identity=join.identity,
        incarnation=join.incarnation,
        address=join.address,
        port=join.port,
        labels=join.labels,
        joined=joined if before is None else before.joined,
        facts=join.facts,
        clock_off_s=off_s,
        joined_wall_s=before.joined_wall_s if before is not None and is_same else wall_s,
        slots=join.slots,
        max_jobs=join.max_jobs,
        drain=None if before is None else before.drain,
        troubles=before.troubles if before is not None and is_folder else (),
        undrained=before.undrained if before is not None and is_same else 0,
        forgiven=before.forgiven if before is not None and is_same else {},
        signals=before.signals if before is not None and is_same else {},
    )
