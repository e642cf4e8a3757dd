"""Planted bugs: each a one-line patch to `protocol/`, and each must be caught by random seeds, or by a story it names.

    python -m tests.sim.mutants NAME [SEEDS]

runs the seeds with that patch until one fails, and prints it. The patched module never touches the disk: it is compiled
from the changed text when it is imported. So nothing of protocol/ may be imported here before that.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import random
import sys
from collections.abc import Sequence
from types import ModuleType

from tests.sim.mutant import SEEDS_MAX, Mutant
from tests.sim.plan_mutants import PLANNED

SILENT = ("cuts", "words", "steady")
"""Kinds of worlds in which somebody is silent, and little else happens."""

MUTANTS = {
    "the next generation begins when one node has stopped": Mutant(
        "protocol.generation", "len(self.gone) == len(self.seats)", "len(self.gone) >= 1"
    ),
    "orders are sent before what they rest on is on disk": Mutant(
        "protocol.coordinator",
        "return [*persisted, *self.asides, *self.rendezvous.new_wants(self.not_asked), *answers, *asks]",
        "return [*answers, *persisted, *self.asides, *self.rendezvous.new_wants(self.not_asked), *asks]",
    ),
    "a report of a past generation counts": Mutant(
        "protocol.generation",
        "if seat is None or seat.incarnation != incarnation or renewal.generation != self.number:",
        "if seat is None or seat.incarnation != incarnation:",
    ),
    "a node that comes back gets any slot": Mutant(
        "protocol.rendezvous", "held = {node: self.slots[node] for node in chosen if node in self.slots}", "held = {}"
    ),
    "a failure is charged twice": Mutant("protocol.restart", "used=ledger.used + 1", "used=ledger.used + 2"),
    "a lost runner is charged": Mutant(
        "protocol.case", "is_infrastructure=is_nodes_fault(incident, generation)", "is_infrastructure=False"
    ),
    "a victim opens an incident of its own": Mutant(
        "protocol.coordinator",
        "if self.phase is Phase.STOPPING:\n            self.asides += self.case.hear(",
        "if False:\n            self.asides += self.case.hear(",
    ),
    "the node that is to be left out is not": Mutant("protocol.pool", " and n.name != self._without)", ")"),
    "the exclusion of nodes is not read": Mutant(
        "protocol.pool", "is_named and not _is_one_of(node.name, topology.exclude)", "is_named"
    ),
    "spares are told to run": Mutant("protocol.rendezvous", "self._seated(there[:wanted])", "self._seated(there)"),
    "nobody is waited for at last call": Mutant(
        "protocol.rendezvous", "if missing and not is_full and now_s < last_call_s:", "if False:"
    ),
    "who is proven gone is forgotten by a restart of the coordinator": Mutant(
        "protocol.run_state", "lost=tuple(sorted(self.current.lost))", "lost=()"
    ),
    "who stopped and is then proven gone is forgotten by a restart of the coordinator": Mutant(
        "protocol.coordinator",
        "if self.phase not in LIVE or node in self.current.lost:",
        "if self.phase not in LIVE or node in self.current.gone:",
    ),
    "that a lost runner had finished is forgotten by a restart of the coordinator": Mutant(
        "protocol.generation", "self.last_parts = {**self.last_parts, **known}", "pass"
    ),
    "an accepted stop is forgotten": Mutant(
        "protocol.run_state", "            stop=self.stop,\n", "            stop=None,\n"
    ),
    "an accepted restart is forgotten": Mutant(
        "protocol.run_state", "            restart=self.restart,\n", "            restart=None,\n"
    ),
    "one node that has finished is enough": Mutant(
        "protocol.reports", "return self._finished == self._nodes > 0", "return self._finished > 0"
    ),
    "a backoff does not go on after a restart of the coordinator": Mutant(
        "protocol.coordinator", "self.backoff_until_s = now_s + self.backoff_s", "pass"
    ),
    "nodes that run different things run together": Mutant(
        "protocol.rendezvous", "if len(by_value) > 1:", "if len(by_value) > 9:"
    ),
    "stopped is told before the tree is gone": Mutant(
        "protocol.member",
        "            self._is_clearing = True\n            return [Clear(",
        "            self.part = Part.STOPPED\n            return [Clear(",
    ),
    "a runner launches what it was told to stop": Mutant(
        "protocol.member", "if assignment.generation <= self.generation or self.is_ending:", "if self.is_ending:"
    ),
    "a node starts a second runner for a run": Mutant(
        "protocol.node", "return self.starting.union(self.runners.values(),", "return self.starting.union("
    ),
    "a node is never told that an end is settled": Mutant(
        "protocol.node_orders", "        side.settled.add(incarnation)\n", ""
    ),
    "reports on a new connection are taken for late ones": Mutant(
        "protocol.node_orders", "side.number, side.runners = 0, None", "side.runners = None"
    ),
    "the restart budget is not read": Mutant("protocol.restart", "return 0 <= self.limit <= self.used", "return False"),
    "a run is given up at its first failure": Mutant(
        "protocol.restart", "return 0 <= self.limit <= self.used", "return self.used >= 0"
    ),
    "there is no backoff": Mutant(
        "protocol.restart",
        "delay_s = backoff_s(ledger.streak, table.backoff_s, table.backoff_max_s, jitter)",
        "delay_s = 0.0",
    ),
    "last call always waits": Mutant(
        "protocol.rendezvous",
        "if missing and not is_full and now_s < last_call_s:",
        "if not is_full and now_s < last_call_s:",
    ),
    "nodes are waited for for 3 s": Mutant(
        "protocol.rendezvous",
        "return math.inf if before.is_patient else self._since_s + self._table.join_timeout_s",
        "return math.inf if before.is_patient else self._since_s + 3.0",
    ),
    "no spares are wanted": Mutant(
        "protocol.pool",
        "self.eligible[: self._topology.nnodes[1]]",
        "self.eligible[: self._topology.nnodes_wanted]",
    ),
    "stale offers count": Mutant(
        "protocol.pool", "if is_sound(offer) and now_s - heard_s <= FRESH_S}", "if is_sound(offer)}"
    ),
    "an incident is never corrected": Mutant(
        "protocol.case",
        "if found is None:",
        "if True:",
    ),
    "a second stop cannot take the grace away": Mutant(
        "protocol.orders", "now=earlier.now or asked.now", "now=earlier.now"
    ),
    "a second restart drops what the first one leaves out": Mutant(
        "protocol.planned", "if event.without or self.restart is None:", "if True:"
    ),
    "another runner of a node has its seat": Mutant(
        "protocol.run_state",
        "return seat is not None and seat.incarnation == incarnation",
        "return seat is not None",
    ),
    "a runner that is ahead is not believed": Mutant(
        "protocol.coordinator", "if renewal.generation > self.generation:\n", "if False:\n"
    ),
    "a node that is silent is up for ever": Mutant(
        "protocol.fleet",
        "return node.link is not None and now_s < node.heard_s + ANSWERS_S",
        "return node.link is not None",
    ),
    "a name is given away over what lives there": Mutant(
        "protocol.fleet", "if run := self._seated(join.node):", 'if run := "":', kinds=("rough",)
    ),
    "a name is given away while its holder may come back": Mutant(
        "protocol.fleet",
        "return joining.awaited(record, join) if shown.is_up or shown.may_come else None",
        "return None",
    ),
    "who is silent is lost by the lease alone": Mutant(
        "protocol.leases",
        "return is_over and any(self._frees(witness, node, now_s) for witness in given.witnesses)",
        "return is_over and bool(given.witnesses)",
        SILENT,
    ),
    "the word of any witness is enough": Mutant(
        "protocol.lease",
        "if len(self._words) == len(self._witnesses):\n            self.until_s = max(self.until_s, min(",
        "if self._words:\n            self.until_s = max(self.until_s, max(",
        SILENT,
    ),
    "nothing is passed on by witnesses": Mutant(
        "protocol.member",
        "Renew(report, by_witnesses or self.lease.is_unheard(self._now_s))",
        "Renew(report, False)",
        SILENT,
    ),
    "no witness gives its word": Mutant(
        "protocol.standing",
        "is_given = is_ours and self._words.may_give(incarnation, self.lease.timing, now_s)",
        "is_given = False",
        SILENT,
    ),
    "a runner that has stopped gives no word": Mutant(
        "protocol.lease",
        "return not self.is_fenced and now_s < until_s",
        "return False",
        SILENT,
    ),
    "a runner fences after it may be counted as lost": Mutant(
        "protocol.lease",
        "self.until_s = max(self.until_s, self.answered_s + self.timing.fence_s)\n        return True",
        "self.until_s = max(self.until_s, self.answered_s + self.timing.ttl_s + 1.0)\n        return True",
        SILENT,
    ),
    "a late order is obeyed": Mutant(
        "protocol.lease",
        "return not assignment.witnesses or now_s < self.answered_s + assignment.timing.fence_s",
        "return True",
    ),
    "the words that witnesses gave are not counted": Mutant(
        "protocol.leases",
        "return is_fresh and now_s >= told.word_s + timing.ttl_s",
        "return is_fresh",
        SILENT,
    ),
    "a restart of the coordinator does not count leases anew": Mutant(
        "protocol.leases",
        "held.heard_s, held.direct_s, held.is_heard = now_s, now_s, False",
        "held.is_heard = False",
        SILENT,
    ),
    "what a witness has said once is believed for ever": Mutant(
        "protocol.leases",
        "is_fresh = now_s < told.asked_s + timing.fresh_s",
        "is_fresh = told.asked_s > -math.inf",
        SILENT,
    ),
    "a witness gives its word to both sides": Mutant(
        "protocol.lease", "if now_s < self._told.get(incarnation, -math.inf) + timing.word_s:", "if False:", SILENT
    ),
    "a spare and a node that comes back have one slot": Mutant(
        "protocol.rendezvous", "if n not in given and slot not in given.values()}", "if n not in given}"
    ),
    "a start is lost in a crash": Mutant(  # the shell's order, which tests/sim/host.py plays
        "tests.sim.host",
        "lambda: self._accepted(job.run, write, then))",
        "lambda: self._accepted(job.run, write, lambda: None)) or then()",
    ),
    "runners that a node has given their run are forgotten by a restart of its supd": Mutant(
        "protocol.node", "self.runners = dict(given)", "self.runners = {}"
    ),
    # Covered for: numbers of renewals and of generations only go up (R3), no runner is welcomed by an older coordinator
    # than it has heard, and one that finds a newer one gives way within 7 s. What it says until then is seldom odd.
    "the epoch is ignored": Mutant(
        "protocol.lease",
        "return epoch == self.epoch",
        "return True",
        story="test_the_word_of_a_coordinator_that_was_replaced_ends_nothing",
    ),
    "a stop is only pushed, and not the answer to a renewal": Mutant(
        "protocol.orders", "    return mind.stop\n", "    return Wait()\n"
    ),
    "what is said of a past generation is not answered": Mutant(
        "protocol.coordinator",
        "if isinstance(event, Heard) and not (is_news",
        "if isinstance(event, Heard) and event.renewal.generation >= self.generation and not (is_news",
    ),
    "a node forgets an end before it is settled": Mutant(
        "protocol.node", "buried = tuple(self.buried.values())[:BURIED_A_REPORT_MAX]", "buried = ()"
    ),
    **PLANNED,
}


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the patched module in place of the real one."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The patched module, if that is asked for."""
        if fullname != self.mutant.module:
            return None
        return importlib.util.spec_from_loader(fullname, _Loader(self.mutant), origin=str(self.mutant.path))


class _Loader(importlib.abc.InspectLoader):
    """Compiles the patched text."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def get_source(self, fullname: str) -> str:
        """The patched text."""
        return self.mutant.source()


def _hear(story: str) -> str | None:
    """How a story fails."""
    from tests.sim import test_losses

    try:
        getattr(test_losses, story)()
    except AssertionError as exc:
        return f"story {story}: {exc}"
    return None


def hunt(mutant: Mutant, seeds: int) -> str | None:
    """Patch, and run seeds until one fails; returns how it did. Once a process."""
    assert not any(name.split(".")[0] == "protocol" for name in sys.modules), "too late to patch"
    sys.meta_path.insert(0, _Finder(mutant))
    if mutant.story:
        return _hear(mutant.story)
    from tests.sim.draws import setup_of
    from tests.sim.simulate import run_one

    fits = (s for s in itertools.count() if not mutant.kinds or setup_of(s, random.Random(s)).kind in mutant.kinds)
    for seed in itertools.islice(fits, seeds):
        _, failure = run_one(seed)
        if failure is not None:
            return f"seed {seed}: {failure.what}"
    return None


if __name__ == "__main__":
    found = hunt(MUTANTS[sys.argv[1]], int(sys.argv[2]) if len(sys.argv) > 2 else SEEDS_MAX)
    sys.stdout.write(f"{found or 'survived'}\n")
    sys.exit(0 if found else 1)
