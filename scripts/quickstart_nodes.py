"""What `scripts/quickstart --nodes 3` does once all is installed: a real training on three nodes, of which one is taken
out and taken in again, and a look at what that has cost.

The nodes are three supd on 127.0.0.2, .3 and .4, with all their files in a temporary folder (scripts/hosts).
"""

import contextlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from scripts.hosts.local_fleet import FleetFailed, LocalFleet
from scripts.hosts.namespaces import HostsFailed

ROOT = Path(__file__).resolve().parent.parent
JOB_FILE = "conf/jobs/charlm-elastic.toml"
JOB = "charlm-elastic"
SCRIPT = ROOT / "scripts/examples/charlm.py"
STEPS = 200  # as in the job
TAKEN_OUT = "c"
OUT_AT_STEP, IN_AT_STEP = 60, 120  # a few checkpoints each
RUN_LIMIT_S = 300.0
LOSS_TOLERANCE = 0.02
SCORE = re.compile(r"step (\d+) held-out loss ([\d.]+) nats/char")


class Deviation(Exception):
    """Something did not go as the README promises."""


def say(line: str) -> None:
    """Tell the user what this script itself does, among what supctl shows."""
    print(f"quickstart │ {line}", flush=True)


def until(is_so: Callable[[], bool], otherwise: str) -> None:
    """Wait for what other processes do; raises Deviation where it is not so in time."""
    for _ in range(int(RUN_LIMIT_S / 0.1)):
        if is_so():
            return
        time.sleep(0.1)  # noqa: TID251  # between two looks
    raise Deviation(f"{otherwise} within {RUN_LIMIT_S:g} s")


class Demonstration:
    """One training, from its start to its end."""

    def __init__(self, fleet: LocalFleet, folder: Path) -> None:
        self._fleet = fleet
        self._training = folder / "training"
        self._undisturbed = folder / "undisturbed"
        self._follow: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """All of it; raises Deviation where it goes another way than it should."""
        say(f"supctl start {JOB_FILE} --follow")
        self._follow = self._popen("supctl", "start", JOB_FILE, "--follow")
        self._until_saved(OUT_AT_STEP)
        self._restart(f"taking node {TAKEN_OUT} out", 1, ["a", "b"], "--without", TAKEN_OUT)
        self._until_saved(IN_AT_STEP)
        self._restart("nothing keeps it out of the next generation", 2, ["a", "b", "c"])
        until(lambda: self._ended() is not None, "training has not ended")
        if self._ended() != 0:
            raise Deviation(f"supctl start --follow ended with {self._ended()}")
        self._verify()

    def _popen(self, *command: str) -> subprocess.Popen[bytes]:
        env = self._fleet.env("a") | {"CHARLM_OUT": str(self._training)}
        # In a session of its own, so that Ctrl-C comes to this script alone, which then ends things in order.
        return subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, start_new_session=True)

    def _ended(self) -> int | None:
        assert self._follow is not None
        return self._follow.poll()

    def _saved_step(self) -> int:
        """The step of the last checkpoint, as the training itself announces it; 0 before the first."""
        try:
            return int((self._training / "latest_step.txt").read_text())
        except FileNotFoundError:
            return 0

    def _until_saved(self, step: int) -> None:
        until(lambda: self._saved_step() >= step or self._ended() is not None, f"training has not saved step {step}")
        if self._ended() is not None:
            raise Deviation(f"training ended, and `supctl start` with {self._ended()}, before all was done to it")

    def _restart(self, why: str, generation: int, nodes: list[str], *options: str) -> None:
        """A restart by the operator, asked of a node that does not host, and what must come of it."""
        say(f"{why}: supctl restart {JOB} {' '.join(options)}".rstrip())
        self._supctl("b", "restart", JOB, *options)

        def is_there() -> bool:
            run = self._status()
            return (run["generation"], run["state"]) == (generation, "running")

        until(is_there, f"generation {generation} does not run")
        if (seen := self._status()["nodes"]) != nodes:
            raise Deviation(f"generation {generation} runs on {seen}, not on {nodes}")

    def _status(self) -> Any:
        (run,) = json.loads(self._supctl("a", "status", JOB, "--json"))["data"]["runs"]
        return run

    def _supctl(self, node: str, *args: str) -> str:
        done = self._fleet.supctl(node, *args)
        if done.returncode:
            raise Deviation(f"`supctl {' '.join(args)}` ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def _verify(self) -> None:
        """Compare what is told of the run, and what the training printed, with what must have happened."""
        run = self._status()
        expected = {"state": "succeeded", "generation": 2, "restarts_used": 0, "incident": None}
        for name, wanted in expected.items():
            if run[name] != wanted:
                raise Deviation(f"{name} is {run[name]!r}, not {wanted!r}")
        printed = self._supctl("a", "logs", JOB, "--gen", "all", "-r", "0", "--stream", "out", "--no-prefix")
        splits = re.findall(r"([\d,]+) windows seen so far; .+ split among (\d+) ranks", printed)
        if [ranks for _, ranks in splits] != ["3", "2", "3"]:
            raise Deviation(f"the windows of each step were split as {splits}, not among 3, 2 and 3 ranks")
        seen = [windows for windows, _ in splits]
        say(f"3 nodes up to {seen[1]} windows of text, 2 nodes up to {seen[2]}, then 3 again; every rank ended with 0")
        self._compare(_last_loss(printed))

    def _compare(self, loss: float) -> None:
        say("the same training once more: one process, undisturbed")
        command = [sys.executable, str(SCRIPT), "--out", str(self._undisturbed), "--steps", str(STEPS)]
        env = self._fleet.env()
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, timeout=RUN_LIMIT_S, check=False)
        if done.returncode:
            raise Deviation(f"the undisturbed training ended with {done.returncode}")
        undisturbed = _last_loss(done.stdout)
        off = loss / undisturbed - 1
        if abs(off) > LOSS_TOLERANCE:
            raise Deviation(f"held-out loss {loss} against {undisturbed} of an undisturbed training: {off:+.1%}")
        say(f"held-out loss after {STEPS} steps: {loss} nats/char; where nothing happened: {undisturbed} ({off:+.1%})")


def _last_loss(printed: str) -> float:
    step, loss = SCORE.findall(printed)[-1]
    if int(step) != STEPS:
        raise Deviation(f"the last held-out loss is that of step {step}, not of {STEPS}")
    return float(loss)


def demonstrate(nodes: int, folder: Path) -> None:
    """Between the start of a fleet and its end, which comes whatever happens; raises Deviation."""
    begun_s = time.perf_counter()
    say(f"starting {nodes} supd on 127.0.0.2 and up, with all their files in {folder}")
    fleet = LocalFleet.up(folder / "fleet", nodes)
    try:
        Demonstration(fleet, folder).run()
    except Deviation:
        for name in fleet.nodes:
            with contextlib.suppress(OSError):
                lines = (fleet.folder / name / "supd.log").read_text(errors="replace").splitlines()
                print(f"the last lines of supd's own log on {name}:", *lines[-10:], sep="\n", file=sys.stderr)
        raise
    finally:
        left = fleet.down()
    if left:
        raise Deviation(f"left running behind supd: {left}")
    say(f"all supd have ended and nothing is left running, {time.perf_counter() - begun_s:.0f} s after the start")


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    for again in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(again, signal.SIG_IGN)  # things are ended in order already, and every wait has its limit
    sys.exit(128 + number)


def main(nodes: int) -> int:
    """Run in a folder that is gone afterwards; returns the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    # A unix socket's path is short; a TMPDIR need not be.
    parent = None if len(tempfile.gettempdir()) < 40 else "/tmp"
    with tempfile.TemporaryDirectory(prefix="supd-quickstart-", dir=parent) as name:
        try:
            demonstrate(nodes, Path(name).resolve())
        except (Deviation, FleetFailed, HostsFailed) as exc:
            print(f"quickstart failed: {exc}", file=sys.stderr)
            return 1
    return 0
