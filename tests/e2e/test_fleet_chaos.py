"""kill -9 of any process on any node of a fleet, at random instants of start, restart and stop."""

import contextlib
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from protocol.messages.control import ControlReply, Done, Failure, Request, RestartRun, StopRun
from supervisor.shell.clock import boot_s
from tests.e2e.fleet import Fleet, running_fleet
from tests.e2e.supd import Supd, wait_for
from tests.e2e.threes import SIZES, kill, launch_the_dead, parent_of, ranks_on, survivors
from tests.e2e.wire import ask, start_request

ROUNDS = 25
ACTIVE_MAX = 2
LATEST_KILL_S = 0.5
"""After an operation was asked for; a start or a restart on three nodes takes about as long."""

CONFIG = '[workers]\nlinger = "2s"\norphan_wait = "30s"\n'
TABLES = (
    '[restart]\nbackoff = "0s"\nbackoff_max = "0s"\nmax_restarts = -1\non_startup_failure = "restart"\n'
    '[stop]\ngrace = "2s"\n[rendezvous]\nlast_call = "1s"\n'
)
NOT_NOW = ("F110", "F114")
"""The host is away, for a moment; the run cannot do without that node."""


class Chaos:
    """A fleet with a few runs, an operator who is never satisfied, and somebody who kills."""

    def __init__(self, fleet: Fleet, shared: Path, seed: int) -> None:
        self.fleet = fleet
        self.shared = shared
        self.rng = random.Random(seed)
        self.accepted: list[str] = []
        self.stopped: set[str] = set()
        self.done: Counter[str] = Counter()

    def ask(self, request: Request, *, may_be_refused: bool = False) -> str:
        """Ask as supctl would, at whichever node is there, again and again until one answers; returns the run."""

        def answer() -> ControlReply | None:
            supd = self.rng.choice(list(self.fleet.nodes.values()))
            with contextlib.suppress(OSError):
                reply = ask(supd.control, request)
                is_away = isinstance(reply, Failure) and reply.code == NOT_NOW[0]
                return None if is_away else reply
            launch_the_dead(self.fleet)
            return None

        reply = wait_for(f"an answer to {request}", answer)
        if may_be_refused and isinstance(reply, Failure) and reply.code in NOT_NOW:
            return ""
        assert isinstance(reply, Done), reply
        return reply.run

    def operate(self, number: int) -> None:
        """Start, restart or stop something. It was answered, so it must hold."""
        active = [run for run in self.accepted if run not in self.stopped]
        usual = ["start", "restart", "restart", "without", "stop"]
        what = self.rng.choice(usual if 0 < len(active) < ACTIVE_MAX else usual[1:] if active else usual[:1])
        self.done[what] += 1
        if what == "start":
            size = SIZES[self.rng.choice(["fixed", "standby", "standby", "grow"])]
            job = self.fleet.host.job(f"job{number}", "copies.py", str(self.shared), nproc=1, tables=size + TABLES)
            self.accepted.append(self.ask(start_request(self.fleet.host, job, f"request-{number}")))
        elif what == "stop":
            run = self.rng.choice(active)
            self.ask(StopRun(run=run, now=self.rng.random() < 0.5))
            self.stopped.add(run)
        else:
            without = self.rng.choice(list(self.fleet.nodes)) if what == "without" else ""
            request = RestartRun(run=self.rng.choice(active), reason="chaos", without=without)
            self.ask(request, may_be_refused=bool(without))

    def shoot(self) -> None:
        """Kill one of them, or several at once, at an instant nobody expects. A supd comes back, now or a round on."""
        launch_the_dead(self.fleet)
        instant_s = boot_s() + self.rng.uniform(0, LATEST_KILL_S)
        wait_for("the instant", lambda: boot_s() >= instant_s)
        supd = self.fleet[self.rng.choice(list(self.fleet.nodes))]
        what = self.rng.choice(["supd", "runner", "guard", "rank", "pair", "node"])
        self.done[what] += 1
        if what in ("supd", "node"):
            supd.kill()
        with contextlib.suppress(OSError):
            kill(*self._victims(what, supd))
        if self.rng.random() < 0.5:
            launch_the_dead(self.fleet)

    def _victims(self, what: str, supd: Supd) -> list[int]:
        if what == "node":
            return [*supd.guard_pids(), *supd.runner_pids(), *ranks_on(self.fleet, supd)]
        match what:
            case "supd":
                found = []
            case "guard":
                found = supd.guard_pids()
            case "rank":
                found = ranks_on(self.fleet, supd)
            case _:
                found = supd.runner_pids()
        if not found:
            return []
        victim = self.rng.choice(sorted(found))
        guard = parent_of(victim) if what == "pair" else 0
        return [guard, victim] if guard in supd.guard_pids() else [victim]


@pytest.mark.timeout(300)
def test_no_start_is_lost_nothing_is_left_and_no_rank_runs_twice_whoever_is_killed_on_whichever_node(
    short_dir: Path,
) -> None:
    seed = int(os.environ.get("CHAOS_SEED", "3"))
    shared = short_dir / "shared"
    shared.mkdir()
    with running_fleet(short_dir, 3, config=CONFIG) as fleet:
        chaos = Chaos(fleet, shared, seed)
        for number in range(ROUNDS):
            chaos.operate(number)
            chaos.shoot()
        again = f", CHAOS_SEED={seed}, {dict(chaos.done)}"
        launch_the_dead(fleet)
        fleet.host.wait_until_ready()
        fleet.wait_joined(*fleet.nodes)
        # Those that were told to stop come first: ranks that all end with 0 before a stop reaches them have succeeded.
        for run in sorted(chaos.accepted, key=lambda run: run not in chaos.stopped):
            if run not in chaos.stopped:
                (shared / "finish").touch()
            status = fleet.host.wait_state(run, "succeeded", "stopped", "failed")
            expected = "stopped" if run in chaos.stopped else "succeeded"
            assert status["state"] == expected, f"{run} has {status['state']}: {status['reason']}{again}"
        assert " twice\n" not in (shared / "notes").read_text(), again
        wait_for(f"no worker to be left{again}", lambda: not survivors(fleet))
        for name, supd in fleet.nodes.items():
            _, found, trace = supd.log.read_text().partition("Traceback")
            assert not found, f"{name}{again}: {trace}"
            wait_for(f"one ready runner alone on {name}{again}", lambda supd=supd: has_one_runner(supd))  # type: ignore[misc]
            wait_for(f"one lock alone on {name}{again}", lambda supd=supd: len(locks(supd)) == 1)  # type: ignore[misc]


def has_one_runner(supd: Supd) -> bool:
    """With its guard: the ready one, that has no run."""
    return len(supd.runner_pids()) == len(supd.guard_pids()) == 1


def locks(supd: Supd) -> list[Path]:
    """One a runner."""
    return list((supd.state / "runners").glob("*.lock"))
