"""Planted bugs in planned changes, notices, budgets, and in what runs may use of the nodes that they share."""

from tests.sim.mutant import Mutant

P, S = ("planned",), ("sharing",)
BOTH = (*P, *S)
"""Kinds of worlds in which such things happen."""

PLANNED = {
    "a drain is charged to the budget": Mutant(
        "protocol.planned",
        "if self.spec.restart.count_membership and any(change.is_membership for change in going):",
        "if going:",
        P,
    ),
    "what lives on a node is free for other runs once its run has no use for the node": Mutant(
        "protocol.grants",
        "(not told or (has_live and node in machine.current.alive))",
        "not told",
        S,
    ),
    "a later run overtakes one that waits": Mutant(
        "protocol.allotment", "self._waiting.setdefault(node, claim.run)  # A2", "pass", S
    ),
    "a notice is forgotten by a restart of the coordinator": Mutant(
        "protocol.run_state", "            preempted=self.preempted,\n", "            preempted={},\n", P
    ),
    "a notice that supd tells of is not heard": Mutant(
        "protocol.planned", "if self._concerns(roster[name])})", "if False})", P
    ),
    "a node under notice takes new work": Mutant(
        "protocol.departures", "return self.is_under_notice(node) or (", "return (", P
    ),
    "a drain is forgotten when the supd there starts again": Mutant(
        "protocol.node_entry", "drain=None if before is None else before.drain", "drain=None", BOTH
    ),
    "a draining node takes new work": Mutant(
        "protocol.departures", "(node.drain is not None and not self.is_last_resort(node))", "False", BOTH
    ),
    "a scale is forgotten by a restart of the coordinator": Mutant(
        "protocol.run_state", "            nnodes=self.nnodes,\n", "            nnodes=None,\n", P
    ),
    "a runner of the job before serves on": Mutant(
        "protocol.coordinator",
        "is_past = renewal.revision < self.revision or",
        "is_past =",
        P,
    ),
    "a planned change waits for nothing": Mutant(
        "protocol.planning",
        "return now_s >= change.go_s or (change.at_save and now.saves > self._able[change.key].saves)",
        "return True",
        P,
    ),
    "a drain goes although the run cannot go on without the node": Mutant(
        "protocol.planning",
        'lacks = f"no spare: {_count(left, least)}" if is_short or node.name in kept else ""',
        'lacks = ""',
        P,
    ),
    "an infrastructure failure is charged to the budget of the program": Mutant(
        "protocol.restart",
        "return MAX_INFRA_RESTARTS if failure.is_infrastructure and not table.count_membership else MAX_RESTARTS",
        "return MAX_RESTARTS",
    ),
    "a run that is held goes on when the coordinator starts again": Mutant(
        "protocol.coordinator",
        "if self.phase is Phase.FORMING:\n            self.begin_forming(now_s)",
        "if self.phase in (Phase.FORMING, Phase.HELD):\n            self.begin_forming(now_s)",
        BOTH,
    ),
    "a run that is to be held fails": Mutant(
        "protocol.restart", 'is_held = table.on_budget_spent == "hold"', "is_held = False", BOTH
    ),
    "unknown progress is none": Mutant(
        "protocol.restart",
        "same=0 if failure.step is None else ledger.same + 1 if is_same else 1,",
        "same=ledger.same + 1 if failure.cause == ledger.last_cause else 1,",
        ("alone", "rough", *BOTH),
    ),
    "a node on which incidents begin again and again is used on": Mutant(
        "protocol.exclusion", "return node in self._known and self._known[node].holds(self.now_s)", "return False", P
    ),
    "a runner that was told to end is counted on": Mutant(
        "protocol.coordinator",
        "self.roll.release(node, incarnation)\n            self.rendezvous.forget(node)",
        "pass",
        P,
    ),
}
