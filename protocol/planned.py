"""What ends a generation although nothing failed: what operators want, the fleet's drains, growth, nodes taken away.

What is wanted, and when it goes: planning.py. None of it is charged to a budget, but as restart.count_membership says.
"""

from protocol.coordinator_events import (
    LIVE,
    Phase,
    Reloaded,
    RestartRequested,
    RosterNode,
    ScaleRequested,
)
from protocol.generation import Generation
from protocol.ids import NO_GENERATION
from protocol.life import Life
from protocol.messages.member import Renewal
from protocol.node_entry import is_lifted
from protocol.planning import Situation, reason
from protocol.pool import matches
from protocol.text import one_line, range_text, some_of

ON = (Phase.LAUNCHING, Phase.RUNNING)
"""Phases of a generation that nothing has ended."""


class Planned(Life):
    """One run, as far as its generations end of what was planned, or announced."""

    # --- operators -----------------------------------------------------------------------------------------------

    def on_restart_requested(self, event: RestartRequested, now_s: float) -> None:
        """A new generation, perhaps without one of the nodes."""
        if self.stop is not None or self.refuses_restart:  # the shell says so
            return
        asked, why = f"restart requested by {event.by}", one_line(event.reason)
        how = f", without {event.without}" if event.without else ""
        text = f"{asked}{how}: {why}" if why else f"{asked}{how}"
        self.note("operator.restarted", text, by=event.by, without=event.without or None)
        if event.without or self.restart is None:  # a wish that was accepted is not dropped by a second one without it
            self.without = event.without
        self._begin_anew(why or asked, now_s)

    def on_reloaded(self, event: Reloaded, now_s: float) -> None:
        """The same with another revision of the job. Its runners serve the one before: they are let go."""
        if self.stop is not None or self.refuses_restart or event.revision <= self.revision:
            return
        asked, why = f"restart with another job requested by {event.by}", one_line(event.reason)
        self.note("operator.reloaded", f"{asked}: {why}" if why else asked, by=event.by, revision=event.revision)
        if event.spec.topology.nnodes != self.nnodes_replaced:  # the newer word
            self.nnodes = self.nnodes_replaced = None
        self.spec, self.revision = event.spec, event.revision
        self.rendezvous.reload(event.spec)
        self.scale(None if self.nnodes is None else self.nnodes_before)
        for node in self.roll.runners:
            self.rendezvous.forget(node)
        self.rendezvous.awaited = frozenset(self.seats)
        self._begin_anew(why or asked, now_s)

    def _begin_anew(self, why: str, now_s: float) -> None:
        if self.takeover is not None:  # the operator's word that nobody runs what nobody has told of
            self.current, self.takeover = Generation(self.takeover.generation + 1, ()), None
            self.case.close()
            self.phase, self.restart, self.finish_by_s = Phase.FORMING, None, None
        if self.phase in LIVE:
            # Also while a failure is being handled: a restart that was accepted comes, whatever the policy says.
            self.phase, self.finish_by_s, self.restart = Phase.STOPPING, None, why
        else:
            self.restart_reason = "" if self.generation == NO_GENERATION else why
            self.begin_forming(now_s)  # it comes anyway: at once then

    def on_scale_requested(self, event: ScaleRequested, now_s: float) -> None:
        """Other numbers of nodes: for what begins at once, for what runs at its next safe point."""
        self.note(
            "operator.scaled",
            f"{range_text(*event.nnodes)} nodes wanted by {event.by}",
            by=event.by,
            least=event.nnodes[0],
            most=event.nnodes[1],
        )
        before, (least, most) = self.nnodes_before or self.rendezvous.nnodes, event.nnodes
        is_met = before[0] >= least or (self.phase in ON and least <= len(self.seats) <= most)
        self.nnodes, self.nnodes_replaced = event.nnodes, self.spec.topology.nnodes
        self.scale(None if is_met else before)
        self.scale_left_s, self.scale_s = event.deadline_s, now_s + event.deadline_s
        self.form_if_forming(now_s)

    # --- notice --------------------------------------------------------------------------------------------------

    def see_nodes(self) -> None:
        """The fleet has changed: some nodes may be about to be taken away, or may be used again. All of that is taken
        in before a generation is begun of it."""
        roster = {node.name: node for node in self.rendezvous.seen}
        if "" in self.preempted.values():  # its runner was heard before its supd: the notice is of the start it is in
            self.preempted = {name: start or self.rendezvous.start(name) for name, start in self.preempted.items()}
            self.rendezvous.give_notice(self.preempted)
        over = [name for name in self.preempted if name in roster and _is_another(roster[name], self.preempted[name])]
        lifted = [name for name in over if is_lifted(self.preempted[name], roster[name].start)]
        self._withdraw(lifted, "an operator wants that")
        self._withdraw(over, "its supd was started anew")
        unknown = [name for name in self.preempted if name not in roster and not self._may_join(name)]
        self._withdraw(unknown, "the fleet does not know it")
        kept = roster.keys() | self.preempted.keys()
        self.noticed = {node: told for node, told in self.noticed.items() if node in kept}
        listed = set(self.spec.preemption.signals)
        if not listed:
            return
        told = {name: sorted(node.signals & listed) for name, node in roster.items() if node.signals}
        found = {name: f"{signals[0]} to its supd" for name, signals in told.items() if signals}
        self._give_notice({name: why for name, why in found.items() if self._concerns(roster[name])})

    def _may_join(self, node: str) -> bool:
        """Whether a node that has not joined since it was given notice may: it has ranks, or its runner is heard."""
        return not self.preempted[node] and (node in self.seats or node in self.roll.runners)

    def _concerns(self, node: RosterNode) -> bool:
        return node.name in self.seats or matches(self.rendezvous.topology, node)

    def see_notice(self, node: str, incarnation: str, renewal: Renewal, now_s: float) -> None:
        """A runner has told that its node will be taken away; or no longer, after it had."""
        if renewal.notice:
            if self.noticed.get(node) != incarnation:  # else told before: what an operator has lifted since stays so
                self.noticed = {**self.noticed, node: incarnation}
                self._give_notice({node: renewal.notice})
                self.form_if_forming(now_s)
            return
        was_its = self.noticed.get(node) == incarnation
        self.noticed = {name: told for name, told in self.noticed.items() if name != node}
        if was_its and not self._has_signal(node):
            self._withdraw([node], "its runner says so")
            self.form_if_forming(now_s)

    def _has_signal(self, node: str) -> bool:
        """Whether its supd was sent one that is a notice: that is not taken back."""
        return not self.rendezvous.signals(node).isdisjoint(self.spec.preemption.signals)

    def _give_notice(self, found: dict[str, str]) -> None:
        new = {node: why for node, why in found.items() if node not in self.preempted}
        if not new:
            return
        self.preempted = {**self.preempted, **{node: self.rendezvous.start(node) for node in new}}
        self.rendezvous.give_notice(self.preempted)
        for node, why in new.items():
            self.note("preemption.noticed", f"{node} will be taken away: {one_line(why)}", node=node, why=one_line(why))
        is_planned = self.planned != "" and self.restart == self.planned  # else an operator has asked for one since
        if self.phase is Phase.STOPPING and is_planned and any(node in self.seats for node in new):
            self._leave_taken()  # one change, whoever was first

    def _withdraw(self, nodes: list[str], why: str) -> None:
        over = [node for node in nodes if node in self.preempted]
        if not over:
            return
        self.preempted = {node: start for node, start in self.preempted.items() if node not in over}
        self.rendezvous.give_notice(self.preempted)
        for node in over:
            self.note("preemption.withdrawn", f"{node} may be used again: {why}", node=node)

    # --- at the end of each event --------------------------------------------------------------------------------

    @property
    def planned_due_s(self) -> tuple[float | None, float | None]:
        """When a change that is planned is to be looked at, and when the wait for answers is over."""
        return self.plans.deadline_s, self.answers.deadline_s(self.pre_wait_s)

    def see_changes(self, now_s: float) -> None:
        """Whether a planned change goes now. Looked at only where something that it follows from has changed."""
        if self.phase in ON and self.takeover is None and not self.current.alive.isdisjoint(self.preempted):
            self._leave_taken()
        if self.phase not in ON or self.takeover is not None:
            self.plans.rest()
            self.looked_at = None
            return
        cause = (self.generation, self.phase, self.current.saves.count, self.rendezvous.version, self.scale_s)
        due_s = self.plans.deadline_s
        if cause == self.looked_at and (due_s is None or now_s < due_s):
            return
        was_looked_at, self.looked_at = self.looked_at, cause
        was_seen = was_looked_at is not None and was_looked_at[-1] == self.scale_s  # this scale, in this generation
        if self.scale_s is not None and now_s >= self.scale_s and was_seen and not self.plans.wants("scale"):
            self.scale_left_s = self.scale_s = None  # it has as many as there are
        situation = self._situation(now_s)
        going, told = self.plans.look(situation, now_s)
        self.asides += told
        if going:
            if self.spec.restart.count_membership and any(change.is_membership for change in going):
                self.pay(now_s)
            self._end_for(reason(going))

    def _situation(self, now_s: float) -> Situation:
        launched_s = self.current.launched_s
        outlook = self.rendezvous.outlook(self.current.alive, now_s)
        return Situation(
            spec=self.spec,
            nnodes=self.rendezvous.nnodes,
            least=self.rendezvous.least,
            outlook=outlook,
            generation=self.generation,
            nodes=len(self.seats),
            is_running=self.phase is Phase.RUNNING,
            lives_since_s=self.opened_s if launched_s is None else launched_s,
            saves=self.current.saves.count,
            saved_step=self.current.saves.step,
            scale_lacks="" if self.scale_s is None else self.rendezvous.lack_beside((*outlook.stay, *outlook.join)),
            scale_s=self.scale_s,
            is_spent=self.spec.restart.count_membership and not self.can_pay(now_s),
        )

    def _leave_taken(self) -> None:
        self._end_for(f"{some_of(self.taken)} will be taken away")

    def _end_for(self, why: str) -> None:
        self.phase, self.finish_by_s = Phase.STOPPING, None
        self.planned = self.restart = one_line(why)

    @property
    def _warns(self) -> bool:
        return bool(self.spec.stop.pre_signal) and self.pre_wait_s > 0

    def see_answers(self, now_s: float) -> None:
        """Whether all ranks have answered the pre-signal of a stop; not of one that follows a failure."""
        is_now = self.stop is not None and self.stop.now
        if self.phase is not Phase.STOPPING or self.case.is_open or is_now or not self._warns:
            self.answers.rest()
            return
        self.asides += self.answers.see(self.current, self.spec.stop, self.pre_wait_s, now_s)


def _is_another(node: RosterNode, start: str) -> bool:
    """Whether its supd has been started since, or an operator has lifted the notice."""
    return node.start not in ("", start)
