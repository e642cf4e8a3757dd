"""Who sees what the coordinator and its node table do: the host tells, the rules are held against it."""

from collections.abc import Collection
from typing import Protocol

from protocol import fleet_events as f
from protocol.coordinator import Coordinator
from protocol.coordinator_events import Event, Note, Phase, RunRecord, Send
from protocol.fleet import Fleet
from protocol.messages.control import RunStatus
from protocol.messages.fleet import Join


class TableWatcher(Protocol):
    """Who sees what the node table does."""

    def on_begun(self) -> None:
        """The host's supd starts."""

    def on_heard(self, node: str) -> None:
        """A node reports, on the connection that it was taken in by."""

    def on_reported(self, link: f.Link, number: int, *, is_overtaken: bool) -> None:
        """A report is taken for one that a newer one overtook, or not."""

    def on_admitted(self, join: Join) -> None:
        """A node is about to be taken in."""

    def on_declared_lost(self, node: str, *, is_up: bool) -> None:
        """An operator gives their word that nothing of some runs is there; where it does not answer, of any."""

    def on_looked(self, table: Fleet, links: Collection[f.Link]) -> None:
        """Somebody has looked at the table; these links are open."""


class Watcher(Protocol):
    """Who sees what the coordinator does."""

    @property
    def table(self) -> TableWatcher:
        """Who sees what the node table does."""

    def on_accepted(self, run: str) -> None:
        """A run is in the journal."""

    def on_taken_over(self, run: str, incarnation: str) -> None:
        """A run that was not known is in the journal, as this runner has told it."""

    def on_persisted(self, run: str, record: RunRecord) -> None:
        """It is on disk."""

    def on_noted(self, run: str, note: Note) -> None:
        """Something is told to users."""

    def on_sent(self, run: str, machine: Coordinator, send: Send) -> None:
        """An order is given."""

    def on_wanted(self, run: str, machine: Coordinator, nodes: frozenset[str]) -> None:
        """Runners are asked for."""

    def on_event(self, run: str, machine: Coordinator, event: Event) -> None:
        """A machine is about to be handed an event."""

    def on_looked(self, run: str, machine: Coordinator, status: RunStatus, now_s: float) -> None:
        """Somebody has looked at a run; `now_s` is the host's boot-time clock."""

    def on_phase(self, run: str, before: Phase, machine: Coordinator) -> None:
        """A machine has gone on to another phase."""
