"""The nodes of a fleet: who belongs to it under which name, who answers, and who may still come.

    Join ──checked──▶ asked ──Probe: reached, checked again──▶ up ──link lost, or silent──▶ may come ──▶ away
      └────── refused ──────┘                                   ▲                              │           │
                                                                └──────── is heard, joins ─────┴───────────┘

The rules it keeps (docs/protocol.md):
N1 what a node says in its Join is its identity for as long as the connection lives, and it is checked twice: when it
asks, and once the host has reached it at its address. N2 fleet, version and the first entry of `join` are the host's.
N3 a name is taken while its holder answers: its link is open, and it was heard within ANSWERS_S. N4 a later start of
the same state folder replaces an earlier one at once. N5 another state folder, or a copy of it (an earlier start, or
the same one elsewhere), gets the name of a node that is away, but for one under which a runner may be alive: it knows
nothing of that runner, or what is no longer true; and while a node may come, so may runners of it that were not heard
yet. N6 a node may come for RECOVERY_S after its link was lost or its
silence was noticed, and every known one after the host's start; that proves nothing. N7 a clock that is off is told,
never refused. N8 a name keeps its order number; who is away is forgotten only where the table is full. N9 what a node
does every second is not told every second. N10 a drain is of the name, and lasts until it is lifted; signals are of one
start of a supd, until an operator has the node used again.

A node never makes this machine raise: links that are not known change nothing.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping

from msgspec.structs import replace

from protocol import joining
from protocol.absence import runners_on
from protocol.coordinator import Coordinator
from protocol.coordinator_events import LIVE, Note, RosterNode
from protocol.dataclass import dataclass
from protocol.fleet_events import (
    Admit,
    Asked,
    DeclaredLost,
    DrainRequested,
    Drop,
    Effect,
    Event,
    Forget,
    Heard,
    Link,
    NodeRecord,
    Opened,
    Persist,
    Probe,
    Probed,
    Refuse,
    RosterChanged,
    Seated,
    Signalled,
    Tick,
    Troubled,
    UndrainRequested,
    Unlinked,
)
from protocol.messages.control import NodeStatus
from protocol.messages.fleet import NODES_MAX, Join, Joined, JoinRefused
from protocol.node_entry import NodeEntry, record_of
from protocol.versions import agreed

ANSWERS_S = 3.0
"""A node that was heard within this time answers; it reports every second."""

RECOVERY_S = 5.0
"""So long a node that was there a moment ago may come back: more than supd takes to start, and to connect."""

ASKED_MAX = 1024
"""Nodes that are being probed; more are refused, and ask again."""

LOOK_S = 0.25
"""The least time between two looks at all nodes."""

HELD_UP_S = 1.0
"""A look that comes later shows that the host itself was held up: it first hears what was said meanwhile (N6)."""

TELL_AGAIN_S = 60.0
"""What goes on is told again after this time (N9)."""

TOLD_MAX = 1000
"""Of such things that are remembered; beyond it new ones are not told."""


@dataclass(frozen=True)
class _Candidate:
    """A node that is being probed."""

    number: int  # counts up: the newer of two connections has the higher one
    join: Join
    wall_s: float  # our clock, as it asked


def may_live_on(node: str, run: Coordinator) -> bool:
    """Whether a runner of the run may be alive on the node (N5): one with ranks, or one that has none and was heard."""
    return bool(runners_on(node, run))


def nodes_in_use(run: Coordinator) -> Collection[str] | None:
    """Nodes on which ranks of the run may be alive, or on which it may go on once its ranks have failed (N10); None: it
    has not heard yet which nodes there are."""
    if run.is_final:
        return ()
    if run.takeover is not None:  # what is on disk may be over by now; or it is not, and nobody was heard yet
        return run.roll.runners.keys() | run.seats.keys() | run.takeover.seats().keys()
    if run.phase in LIVE:
        return run.current.alive
    return run.seats.keys() & frozenset(run.rendezvous.eligible) if run.rendezvous.seen else None


def in_use(runs: Iterable[Coordinator]) -> frozenset[str] | None:
    """The same of all runs; None: of one it is not known."""
    found = [nodes_in_use(run) for run in runs]
    known = [nodes for nodes in found if nodes is not None]
    return frozenset().union(*known) if len(known) == len(found) else None


class Fleet:
    """State machine of the node table: no IO, no clock, no randomness of its own.

    `host` is the node that hosts the coordinator, and always up. `seated` gives the active run that has a seat or a
    runner on a node which is not proven gone, "" for none.
    """

    def __init__(self, host: Join, epoch: int, seated: Callable[[str], str]) -> None:
        self.host = host
        self.epoch = epoch
        self._seated = seated
        self._nodes: dict[str, NodeEntry] = {}  # with the host's own
        self._roster: dict[str, RosterNode] = {}  # what the runs are told of them
        self._names: dict[Link, str] = {}  # of the nodes whose link is open
        self._asked: dict[Link, _Candidate] = {}
        self._asked_count = 0
        self._next_joined = 0
        self._told_s: dict[tuple[str, ...], float] = {}  # when; the oldest first
        self._look_at_s = math.inf
        self._seats: frozenset[str] | None = None  # nodes on which runs have ranks; None: not known yet
        self._has_changed = False  # the roster, by the event that is being handled

    # --- the door ------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take in one event; return what must be done about it, in that order.

        `now_s` and `deadline_s` are boot-time seconds of this node.
        """
        assert isinstance(event, Opened) is not bool(self._nodes), "opened first, and once"
        self._has_changed = False
        effects: list[Effect]
        match event:
            case Opened(known, wall_s):
                effects = self._on_opened(known, now_s, wall_s)
            case Asked(link, join, wall_s):
                effects = self._on_asked(link, join, wall_s, now_s)
            case Probed(link, ok, why):
                effects = self._on_probed(link, ok, why, now_s)
            case Heard(link):
                effects = self._on_heard(link, now_s)
            case Unlinked(link):
                effects = self._on_unlinked(link, now_s)
            case DeclaredLost(name):
                effects = self._on_declared_lost(name, now_s)
            case DrainRequested(name, drain, wall_s):
                effects = self._keep_up(name, lambda node: node.drain(drain, now_s, wall_s))
            case UndrainRequested(name, by):
                effects = self._keep_up(name, lambda node: node.undrain(by))
            case Troubled(name, wall_s):
                effects = self._keep_up(name, lambda node: node.trouble(now_s, wall_s))
            case Signalled(link, signals):
                effects = self._on_signalled(link, signals)
            case Seated(names):
                self._seats = names
                effects = [effect for name in self._nodes for effect in self._keep_up(name, lambda node: [])]
            case Tick():
                effects = self._on_tick(now_s)
        return [*effects, RosterChanged()] if self._has_changed else effects

    @property
    def deadline_s(self) -> float | None:
        """When a Tick is due; None: never."""
        return self._look_at_s if self._look_at_s < math.inf else None

    # --- what it knows -------------------------------------------------------------------------------------------

    def roster(self) -> tuple[RosterNode, ...]:
        """All nodes, in the order in which they came; what a run has there is the shell's to fill in."""
        return tuple(self._roster.values())

    def node_of(self, link: Link) -> str | None:
        """Whose connection that is; None: nobody's who was taken in."""
        return self._names.get(link)

    def link_of(self, node: str) -> Link | None:
        """The open connection of a node; the host has none."""
        known = self._nodes.get(node)
        return None if known is None else known.link

    def record_of(self, node: str) -> NodeRecord | None:
        """What is kept of a node; None: no node has that name."""
        known = self._nodes.get(node)
        return None if known is None else known.record

    def is_up(self, node: str) -> bool:
        """Whether its supd answers."""
        return node in self._roster and self._roster[node].is_up

    def signals_of(self, node: str) -> Mapping[str, int]:
        """How often its supd has said that it was sent each signal; {} of a node that is not in the table yet."""
        known = self._nodes.get(node)
        return {} if known is None else known.signals

    def status(self, now_s: float) -> tuple[NodeStatus, ...]:
        """All nodes, for people; what the runs have there is the shell's to fill in."""
        return tuple(
            node.status(self.host.node, now_s, is_up=self._roster[name].is_up) for name, node in self._nodes.items()
        )

    # --- joining -------------------------------------------------------------------------------------------------

    def _on_opened(self, known: tuple[NodeRecord, ...], now_s: float, wall_s: float) -> list[Effect]:
        self._next_joined = max((record.joined for record in known), default=-1) + 1
        records = {record.name: record for record in known}
        before = records.get(self.host.node)
        records[self.host.node] = own = self._record(self.host, before, 0.0, self.host.wall_s)
        for record in sorted(records.values(), key=lambda record: record.joined):
            is_host = record.name == self.host.node
            self._nodes[record.name] = entry = NodeEntry(record, may_come_until_s=now_s + RECOVERY_S)
            entry.read_times(now_s, wall_s)
            self._show(record.name, is_up=is_host, may_come=not is_host)
        if len(self._nodes) > 1:
            self._look_by(now_s + RECOVERY_S)
        return [Persist(own)] if own != before else []

    def _on_asked(self, link: Link, join: Join, wall_s: float, now_s: float) -> list[Effect]:
        if link in self._asked or link in self._names:
            return []  # N1: once a connection
        refused = self._objection(join, now_s)
        if refused is None and len(self._asked) >= ASKED_MAX:
            refused = joining.full(self.host, join, f"{ASKED_MAX} others join at this moment")
        if refused is not None:
            return self._refuse(link, join, refused, now_s)
        self._asked_count += 1
        self._asked[link] = _Candidate(self._asked_count, join, wall_s)
        return [Probe(link, join.address, join.port, join.node, join.identity)]

    def _on_probed(self, link: Link, ok: bool, why: str, now_s: float) -> list[Effect]:
        candidate = self._asked.pop(link, None)
        if candidate is None:
            return []  # it has gone meanwhile
        join = candidate.join
        refused = self._objection(join, now_s) if ok else joining.unreached(self.host, join, why)
        if refused is not None:
            return self._refuse(link, join, refused, now_s)
        holder = self._nodes.get(join.node)
        if holder is not None and self._is_newer(holder, candidate):
            return [Drop(link, f"{join.node} has connected anew")]
        return self._admit(link, candidate, holder, now_s)

    def _objection(self, join: Join, now_s: float) -> JoinRefused | None:
        """Why this node cannot be taken in as things stand."""
        return joining.mismatch(self.host, join) or self._claim(join, now_s) or self._lack_of_room(join)

    def _claim(self, join: Join, now_s: float) -> JoinRefused | None:
        """Why it cannot have its name (N3, N4, N5)."""
        holder = self._nodes.get(join.node)
        if holder is None:
            return None
        record = holder.record
        if join.node == self.host.node:
            return joining.taken(record, join)
        if join.identity == record.identity:
            is_later = join.incarnation > record.incarnation
            is_itself = join.incarnation == record.incarnation and joining.where(join) == joining.where(record)
            if is_later or is_itself:
                return None
        if self._answers(holder, now_s):
            return joining.taken(record, join)
        if run := self._seated(join.node):
            return joining.seated(record, join, run)
        shown = self._roster[join.node]
        return joining.awaited(record, join) if shown.is_up or shown.may_come else None

    def _is_newer(self, holder: NodeEntry, candidate: _Candidate) -> bool:
        """Whether the same process has come in by a newer connection, whose probe took less time (N4)."""
        record, join = holder.record, candidate.join
        is_same = (record.identity, record.incarnation) == (join.identity, join.incarnation)
        return is_same and holder.link is not None and holder.number > candidate.number

    def _lack_of_room(self, join: Join) -> JoinRefused | None:
        if join.node in self._nodes or len(self._nodes) < NODES_MAX or self._forgettable() is not None:
            return None
        return joining.full(self.host, join, f"the fleet has {NODES_MAX:,} nodes")

    def _forgettable(self) -> str | None:
        """The node that has been away for longest and has no seat (N8)."""
        away = [node for node in self._nodes.values() if node.record.is_away and not self._seated(node.record.name)]
        longest = min(away, key=lambda node: (node.heard_s, node.record.joined_wall_s), default=None)
        return longest.record.name if longest is not None else None

    def _admit(self, link: Link, candidate: _Candidate, holder: NodeEntry | None, now_s: float) -> list[Effect]:
        join = candidate.join
        effects: list[Effect] = []
        if holder is None and len(self._nodes) >= NODES_MAX:
            effects += self._forget(self._forgettable())
        before = holder.record if holder is not None else None
        off_s = joining.clock_off_s(join.wall_s, candidate.wall_s)
        record = self._record(join, before, off_s, candidate.wall_s)
        if before is None or replace(record, clock_off_s=before.clock_off_s) != before:
            effects.append(Persist(record))
        if holder is not None and holder.link is not None:
            del self._names[holder.link]
            effects.append(Drop(holder.link, f"{join.node} has connected anew"))
        version = agreed(join.versions)
        assert version is not None, "a node was taken in that speaks no version of ours"
        warnings = joining.warnings(self.host, join, off_s)
        host = self.host
        joined = Joined(version=version, epoch=self.epoch, host=host.node, warnings=warnings, identity=host.identity)
        self._nodes[join.node] = entry = NodeEntry(record, link, candidate.number, heard_s=now_s, warnings=warnings)
        if holder is not None:
            entry.succeed(holder)
        self._names[link] = join.node
        self._show(join.node, is_up=True)
        self._look_by(now_s + ANSWERS_S)
        return [*effects, Admit(link, joined), *self._arrival(before, record, warnings, now_s)]

    def _record(self, join: Join, before: NodeRecord | None, off_s: float, wall_s: float) -> NodeRecord:
        """What is kept of a node that joins; `before` is what was kept under its name."""
        if before is None:
            self._next_joined += 1
        return record_of(join, before, self._next_joined - 1, off_s, wall_s)

    def _refuse(self, link: Link, join: Join, refused: JoinRefused, now_s: float) -> list[Effect]:
        if not self._is_news("refused", join.node, joining.where(join), refused.code, now_s=now_s):
            return [Refuse(link, refused)]
        return [Refuse(link, refused), joining.refused(join, refused)]

    def _forget(self, name: str | None) -> list[Effect]:
        assert name is not None, "no room was found before"
        node = self._nodes.pop(name)
        del self._roster[name]
        if node.link is None:
            return [Forget(name)]
        del self._names[node.link]
        return [Forget(name), Drop(node.link, f"{name} has been silent for too long")]

    # --- coming and going ----------------------------------------------------------------------------------------

    def _on_heard(self, link: Link, now_s: float) -> list[Effect]:
        name = self._names.get(link)
        if name is None:
            return []
        node = self._nodes[name]
        node.heard_s = now_s
        if self._roster[name].is_up:
            return []
        self._show(name, is_up=True)
        self._look_by(now_s + ANSWERS_S)
        before, node.record = node.record, replace(node.record, is_away=False)
        return [Persist(node.record), *self._arrival(before, node.record, (), now_s)] if before.is_away else []

    def _on_unlinked(self, link: Link, now_s: float) -> list[Effect]:
        self._asked.pop(link, None)
        name = self._names.pop(link, None)
        if name is None:
            return []
        node = self._nodes[name]
        node.link, node.may_come_until_s = None, now_s + RECOVERY_S
        self._show(name, may_come=True)
        self._look_by(node.may_come_until_s)
        return []

    def _on_declared_lost(self, name: str, now_s: float) -> list[Effect]:
        """It is away from now on, so that another machine may have its name (N5); if it is heard, it is up again."""
        shown = self._roster.get(name)
        if shown is None or shown.is_up:
            return []
        node = self._nodes[name]
        node.may_come_until_s = now_s
        self._show(name)
        return self._departure(node)

    def _on_tick(self, now_s: float) -> list[Effect]:
        """Look at all nodes, where time has changed something; the next look is due when it may do so again."""
        if now_s < self._look_at_s:
            return []
        if now_s > self._look_at_s + HELD_UP_S:
            self._look_at_s = now_s + LOOK_S
            return []
        effects: list[Effect] = []
        due_s = math.inf
        for name, shown in tuple(self._roster.items()):
            if name == self.host.node or not (shown.is_up or shown.may_come):
                continue
            node = self._nodes[name]
            if self._answers(node, now_s):
                due_s = min(due_s, node.heard_s + ANSWERS_S)
                continue
            if shown.is_up:
                node.may_come_until_s = now_s + RECOVERY_S
            may_come = now_s < node.may_come_until_s
            self._show(name, may_come=may_come)
            if may_come:
                due_s = min(due_s, node.may_come_until_s)
            else:
                effects += self._departure(node)
        self._look_at_s = max(due_s, now_s + LOOK_S)
        return effects

    # --- upkeep --------------------------------------------------------------------------------------------------

    def _keep_up(self, name: str, change: Callable[[NodeEntry], list[Note]]) -> list[Effect]:
        """Change what is kept of a node, where there is one of that name; then see whether it has become free."""
        node = self._nodes.get(name)
        if node is None:
            return []
        before, shown = node.record, self._roster[name]
        notes = change(node)
        if self._seats is not None:
            notes += node.see_ranks(has_ranks=name in self._seats)
        self._show(name, is_up=shown.is_up, may_come=shown.may_come)
        return [*([Persist(node.record)] if node.record != before else []), *notes]

    def _on_signalled(self, link: Link | None, signals: Mapping[str, int]) -> list[Effect]:
        name = self.host.node if link is None else self._names.get(link)
        return [] if name is None else self._keep_up(name, lambda node: node.hear_signals(signals))

    def _answers(self, node: NodeEntry, now_s: float) -> bool:
        return node.link is not None and now_s < node.heard_s + ANSWERS_S

    def _show(self, name: str, *, is_up: bool = False, may_come: bool = False) -> None:
        """This is how the runs see the node now."""
        shown = self._nodes[name].roster_node(is_up=is_up, may_come=may_come)
        if self._roster.get(name) != shown:
            self._roster[name] = shown
            self._has_changed = True

    def _look_by(self, at_s: float) -> None:
        self._look_at_s = min(self._look_at_s, at_s)

    # --- what is told --------------------------------------------------------------------------------------------

    def _arrival(
        self, before: NodeRecord | None, record: NodeRecord, warnings: tuple[str, ...], now_s: float
    ) -> list[Effect]:
        """A node is up; one that starts again and again is told of now and then (N9)."""
        note = joining.arrived(before, record, warnings)
        if note is None or (note.kind == "node.replaced" and not self._is_news(note.kind, record.name, now_s=now_s)):
            return []
        return [note]

    def _departure(self, node: NodeEntry) -> list[Effect]:
        """It does not answer, and is not expected any more; told once, over restarts of the host too."""
        if node.record.is_away:
            return []
        node.record = replace(node.record, is_away=True)
        return [Persist(node.record), joining.left(node.record, node.absence(self.host.node))]

    def _is_news(self, *what: str, now_s: float) -> bool:
        """Whether this was not told within TELL_AGAIN_S; it is then."""
        for told in list(self._told_s):
            if now_s < self._told_s[told] + TELL_AGAIN_S:
                break
            del self._told_s[told]
        if what in self._told_s or len(self._told_s) >= TOLD_MAX:
            return False
        self._told_s[what] = now_s
        return True
