"""The incident of a generation, from its opening to the last "stopped": named once, corrected while it is open (R4)."""

from collections.abc import Iterable

from msgspec.structs import replace

from protocol import notes, verdict
from protocol.coordinator_events import Note
from protocol.generation import Generation
from protocol.job import JobSpec
from protocol.messages.control import Incident
from protocol.messages.member import Part, Renewal
from protocol.restart import Failure

INFRASTRUCTURE = ("runner-lost", "node-lost", "fenced")
"""Causes that are no failure of the program."""

_ENDS = ("exit", "signal", "out-of-memory")
"""Causes that are the end of a rank, at a moment that its runner knows."""


class Case:
    """What a generation ends of. The first report is often a victim's, so the cause may be corrected while the case is
    open: by what its runner says later, by a rank that ended earlier elsewhere, by a runner that was gone before."""

    def __init__(self, number: int, incident: Incident | None, *, is_open: bool) -> None:
        self.number = number  # of the last one; 0: there has been none
        self.incident = incident
        self.is_open = is_open
        self._ended_s: float | None = None  # when its rank did, by the clock of the coordinator's node; None: not known
        self._rival: tuple[Incident, float] | None = None  # the earliest of another node, and when

    def open(self, incident: Incident, ended_s: float) -> Note:
        """The generation ends because of this; whatever ends from here on belongs to it."""
        self.number, self.incident, self.is_open = incident.number, incident, True
        self._ended_s, self._rival = ended_s, None
        return notes.opened(incident)

    def close(self) -> bool:
        """Nothing of the generation is left; returns whether it had ended of this."""
        was_open, self.is_open = self.is_open, False
        return was_open

    def hear(self, node: str, renewal: Renewal, now_s: float, *, is_record: bool = False) -> Iterable[Note]:
        """A report that came while the generation ends. Its spans are the runner's own: no clock is compared. In a
        record, which the runner has left, they are as old as that is."""
        if not self.is_open or self.incident is None:
            return ()
        found = verdict.incident(self.incident.number, node, renewal)
        if found is None:
            return ()
        ended_s, told = failed_at_s(found, renewal, now_s), list[Note]()
        if node != self.incident.node:
            if found.cause in _ENDS and (self._rival is None or ended_s < self._rival[1]):
                self._rival = found, ended_s
        else:
            if found != self.incident:
                told += self._correct(found, self._ended_s if is_record else ended_s)
            if self._ended_s is None and not is_record:
                self._ended_s = ended_s
        return [*told, *self._see_rival()]

    def _see_rival(self) -> Iterable[Note]:
        """Whether the rank of another node failed earlier. A coordinator that has begun anew does not know when that of
        the incident did until its runner says so again."""
        assert self.incident is not None
        if self._rival is None or self._ended_s is None or self.incident.cause not in _ENDS:
            return ()
        (found, ended_s), is_earlier = self._rival, self._rival[1] < self._ended_s
        return self._correct(found, ended_s) if is_earlier else ()

    def lose(self, node: str, lost: Incident, last: Renewal | None, now_s: float) -> Iterable[Note]:
        """A node is lost, or its runner proven gone, while the generation ends. Where no stop had reached it, it was
        gone before, and what ended like a victim died of that. When it went nobody knows: what was seen first is told
        all the same."""
        heard_stop = last is not None and last.part in (Part.STOPPING, Part.STOPPED)
        first = self.incident
        if not self.is_open or first is None or heard_stop or first.node == node or not _is_like_a_victim(first):
            return ()
        summary = f"{lost.summary}; first seen: {first.summary}"
        found = replace(lost, number=self.number, summary=summary, stderr_tail=first.stderr_tail)
        return self._correct(found, now_s)

    def _correct(self, found: Incident, ended_s: float | None) -> Iterable[Note]:
        assert self.incident is not None
        note = notes.corrected(self.incident, found)
        self.incident, self._ended_s = found, ended_s
        self._rival = None if self._rival is not None and self._rival[0].node == found.node else self._rival
        return (note,) if note else ()


def _is_like_a_victim(incident: Incident) -> bool:
    """Whether it may have come of a peer's end: a rank ends by an exit code of its own or an abort, as programs do that
    lose touch with another rank, and a runner without its witness ends them. What was killed, or crashed, was not."""
    return incident.cause in ("exit", "fenced") or (incident.cause == "signal" and incident.signal == "SIGABRT")


def failed_at_s(incident: Incident, renewal: Renewal, now_s: float) -> float:
    """When the rank of an incident failed, in the clock of `now_s`, at which its runner's report came in; at the
    latest, since the report was on its way for a while."""
    report = next((r for r in renewal.ranks if r.rank == incident.rank), None)
    return now_s if report is None or report.exit is None else now_s - report.exit.failed_ago_s


def failure_of(
    incident: Incident,
    spec: JobSpec,
    generation: Generation,
    *,
    chooses_port: bool,
    has_ever_started: bool,
    saved_step: int | None,
    run_s: float,
) -> Failure:
    """What the restart policy has to know of an incident that has ended this generation; `run_s` is the run's own
    time."""
    is_hang = incident.cause == "hang"
    seen = generation.reports.last_step
    return Failure(
        cause=incident.cause_key or incident.cause,
        is_infrastructure=is_nodes_fault(incident, generation),
        lost_its_port=chooses_port and generation.has_lost_its_port(incident.rank),
        exit_code=None if is_hang else incident.exit_code,  # that was our doing
        ends_run=is_hang and spec.hang.action == "fail",
        has_ever_started=has_ever_started,
        had_started=generation.reports.all_started,
        ran_s=generation.ran_s(run_s),
        saved_step=saved_step,
        seen_step=None if seen is None else seen[0],
        time_s=run_s,
    )


def is_nodes_fault(incident: Incident, generation: Generation) -> bool:
    """Whether a generation ended of nothing that the program did: a node or its runner was lost, or it could spawn no
    ranks for want of something, or where another node had spawned all of its own."""
    if incident.cause != "spawn":
        return incident.cause in INFRASTRUCTURE
    parts = generation.reports.parts
    part = parts.get(incident.node)
    if part is not None and part.spawn_failure is not None and part.spawn_failure.is_nodes:
        return True
    others = ((seat, parts[node]) for node, seat in generation.seats.items() if node != incident.node and node in parts)
    return any(len(part.ranks) == seat.assignment.nproc and part.spawn_failure is None for seat, part in others)
