"""kill -9 of supd, runner or guard at random instants of start, restart and stop."""

import contextlib
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from protocol.messages.control import ControlReply, Done, Request, RestartRun, StopRun
from supervisor.shell.clock import boot_s
from tests.e2e.supd import Supd, running_supd, wait_for
from tests.e2e.wire import ask, start_request

KILLS = 50
ACTIVE_MAX = 3
LATEST_KILL_S = 0.25
"""After an operation was asked for; a start or a restart of two ranks takes about as long."""

CONFIG = '[workers]\nlinger = "2s"\norphan_wait = "30s"\n'
TABLES = '[restart]\nbackoff = "0s"\nbackoff_max = "0s"\nmax_restarts = -1\n[stop]\ngrace = "2s"\n'


class Chaos:
    """One supd with a few runs, an operator who is never satisfied, and somebody who kills."""

    def __init__(self, supd: Supd, seed: int) -> None:
        self.supd = supd
        self.rng = random.Random(seed)
        self.accepted: list[str] = []
        self.stopped: set[str] = set()
        self.done: Counter[str] = Counter()

    def ask(self, request: Request) -> str:
        """Ask as supctl would, again and again until supd is there to answer; returns the run."""

        def answer() -> ControlReply | None:
            with contextlib.suppress(OSError):
                return ask(self.supd.control, request)
            return None

        reply = wait_for(f"an answer to {request}", answer)
        assert isinstance(reply, Done), reply
        return reply.run

    def operate(self, number: int) -> None:
        """Start, restart or stop something. It was answered, so it must hold."""
        active = [run for run in self.accepted if run not in self.stopped]
        usual = ["start", "restart", "restart", "stop"]
        what = self.rng.choice(usual if 0 < len(active) < ACTIVE_MAX else usual[1:] if active else usual[:1])
        self.done[what] += 1
        if what == "start":
            job = self.supd.job(f"job{number}", "copies.py", str(self.supd.folder / "shared"), tables=TABLES)
            self.accepted.append(self.ask(start_request(self.supd, job, f"request-{number}")))
        elif what == "restart":
            self.ask(RestartRun(run=self.rng.choice(active), reason="chaos"))
        else:
            run = self.rng.choice(active)
            self.ask(StopRun(run=run, now=self.rng.random() < 0.5))
            self.stopped.add(run)

    def shoot(self) -> None:
        """Kill one of them, or a runner together with its guard, at an instant nobody expects."""
        instant_s = boot_s() + self.rng.uniform(0, LATEST_KILL_S)
        wait_for("the instant", lambda: boot_s() >= instant_s)
        what = self.rng.choice(["supd", "runner", "guard", "pair"])
        self.done[what] += 1
        if what == "supd":
            self.supd.kill()
            self.supd.launch()
            return
        victims = self.supd.runner_pids() if what in ("runner", "pair") else self.supd.guard_pids()
        if not victims:
            return
        victim = self.rng.choice(sorted(victims))
        with contextlib.suppress(OSError):
            guard = int(Path(f"/proc/{victim}/stat").read_text().rpartition(")")[2].split()[1])
            if what == "pair" and guard in self.supd.guard_pids():
                os.kill(guard, signal.SIGKILL)
            os.kill(victim, signal.SIGKILL)


@pytest.mark.timeout(300)
def test_no_start_is_lost_no_orphan_is_left_and_no_rank_runs_twice_whoever_is_killed(short_dir: Path) -> None:
    seed = int(os.environ.get("CHAOS_SEED", "2"))
    shared = short_dir / "shared"
    shared.mkdir()
    with running_supd(short_dir, config=CONFIG) as supd:
        chaos = Chaos(supd, seed)
        for number in range(KILLS):
            chaos.operate(number)
            chaos.shoot()
        again = f", CHAOS_SEED={seed}, {dict(chaos.done)}"
        supd.wait_until_ready()
        # Those that were told to stop come first: ranks that all end with 0 before a stop reaches them have succeeded.
        for run in sorted(chaos.accepted, key=lambda run: run not in chaos.stopped):
            if run not in chaos.stopped:
                (shared / "finish").touch()
            state = supd.wait_state(run, "succeeded", "stopped", "failed")["state"]
            assert state == ("stopped" if run in chaos.stopped else "succeeded"), f"{run} has {state}{again}"
        notes = (shared / "notes").read_text()
        assert " twice\n" not in notes, again
        assert "Traceback" not in supd.log.read_text(), again
        wait_for(f"no worker to be left{again}", lambda: not supd.survivors())
        wait_for(f"one ready runner alone{again}", lambda: len(supd.runner_pids()) == len(supd.guard_pids()) == 1)
        wait_for(f"one lock alone{again}", lambda: len(list((supd.state / "runners").glob("*.lock"))) == 1)
