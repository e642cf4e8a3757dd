"""What scripts/quickstart does once all is installed: a real training, a real crash or hang, and a look at the outcome.

It needs a supd that nobody else uses, so it starts one with all of its files in a temporary folder. Every process that
comes of it carries that folder's name in its environment, which is how the end of this script finds what is left.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
JOB_FILE = ROOT / "conf/jobs/charlm.toml"
JOB = "charlm"
VICTIM = 3  # the rank that is disturbed
SAVED_STEP_MIN = 60  # a few checkpoints
SUPD_START_LIMIT_S = 30
RUN_LIMIT_S = 300
END_LIMIT_S = 20


@dataclass(frozen=True)
class Disturbance:
    """What is done to one rank, and how supd's incident tells of it."""

    signal: signal.Signals
    doing: str
    done: str
    incident: dict[str, str]


KILL = Disturbance(signal.SIGKILL, "killing", "was killed", {"cause": "signal", "signal": "SIGKILL"})
STOP = Disturbance(signal.SIGSTOP, "stopping", "was stopped, which supd saw as a hang", {"cause": "hang"})


class Deviation(Exception):
    """Something did not go as the README promises."""


def say(line: str) -> None:
    """Tell the user what this script itself does, among what supctl shows."""
    print(f"quickstart │ {line}", flush=True)


async def until(is_so: Callable[[], bool], limit_s: float, otherwise: str) -> None:
    """Wait for what other processes do; raises Deviation(otherwise) if it is not so within `limit_s`."""
    try:
        async with asyncio.timeout(limit_s):
            while not is_so():  # noqa: ASYNC110  # other processes set no event of ours
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise Deviation(f"{otherwise} within {limit_s} s") from None


class Sandbox:
    """The temporary folder, and the environment that keeps supd, supctl and the training inside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = Path(sys.executable).parent
        self.supd_log = folder / "supd.log"
        self.training = folder / "training"
        own = {name: text for name, text in os.environ.items() if not name.startswith(("SUPD_", "SUPCTL_"))}
        self.env = own | {
            "XDG_CONFIG_HOME": str(folder / "config"),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_RUNTIME_DIR": str(folder / "runtime"),
            "VIRTUAL_ENV": str(self.bin.parent),
            "PATH": f"{self.bin}:{os.environ.get('PATH', os.defpath)}",
            "CHARLM_OUT": str(self.training),
        }
        (folder / "runtime").mkdir(mode=0o700)
        self.config = folder / "supd.toml"
        self.config.write_text('[listen]\npeer = "127.0.0.1:0"\n')

    async def start(self, command: str, *args: str, output: int | None = None) -> asyncio.subprocess.Process:
        """Start supd or supctl; `output` None: on the user's screen.

        In a session of its own, so that Ctrl-C comes to this script alone, which then ends things in order.
        """
        return await asyncio.create_subprocess_exec(
            sys.executable,  # by name: a script's first line can't hold an interpreter's path with spaces
            str(self.bin / command),
            *args,
            cwd=ROOT,
            env=self.env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    async def supctl(self, *args: str) -> str:
        """What `supctl` prints; raises Deviation if it fails."""
        process = await self.start("supctl", *args, output=asyncio.subprocess.PIPE)
        try:
            out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise Deviation(f"`supctl {' '.join(args)}` ended with {process.returncode}: {err.decode().strip()}")
        return out.decode()

    async def read(self, *args: str) -> Any:
        """The data of `supctl … --json`."""
        return json.loads(await self.supctl(*args, "--json"))["data"]

    def saved_step(self) -> int:
        """The step of the last checkpoint, as the training itself announces it; 0 before the first."""
        try:
            return int((self.training / "latest_step.txt").read_text())
        except FileNotFoundError:
            return 0

    def processes(self) -> dict[int, str]:
        """Everything alive that came of this sandbox: pid and command line."""
        mark = os.fsencode(self.folder)
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # ended meanwhile, or another user's
                command = (process / "cmdline").read_bytes()
                if mark in command or mark in (process / "environ").read_bytes():
                    found[int(process.name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
        return found


@contextlib.asynccontextmanager
async def own_supd(sandbox: Sandbox) -> AsyncIterator[None]:
    """A supd that answers; afterwards nothing of it runs any more."""
    with sandbox.supd_log.open("wb") as log:
        supd = await sandbox.start("supd", "run", "--config", str(sandbox.config), output=log.fileno())
    try:
        await answering(sandbox, supd)
        yield
    except BaseException:
        # supd leaves runs alive when it ends, which is not what is wanted of a demonstration that was cut short.
        with contextlib.suppress(Deviation, TimeoutError):
            async with asyncio.timeout(END_LIMIT_S):
                await sandbox.supctl("stop", "--all", "--now")
        await end(supd, sandbox)
        raise
    if left := await end(supd, sandbox):
        raise Deviation(f"left running behind supd: {left}")


async def answering(sandbox: Sandbox, supd: asyncio.subprocess.Process) -> None:
    """Wait until supctl gets an answer of this supd."""
    try:
        async with asyncio.timeout(SUPD_START_LIMIT_S):
            while True:
                try:
                    await sandbox.supctl("status")
                except Deviation:
                    if supd.returncode is not None:
                        raise Deviation(f"supd ended with {supd.returncode} as soon as it was started") from None
                else:
                    return
    except TimeoutError:
        raise Deviation(f"supd has not answered `supctl status` within {SUPD_START_LIMIT_S} s") from None


async def end(supd: asyncio.subprocess.Process, sandbox: Sandbox) -> dict[int, str]:
    """End supd as systemd would; returns what it left running, which is killed then."""
    with contextlib.suppress(ProcessLookupError):
        supd.terminate()
    with contextlib.suppress(Deviation):
        await until(lambda: not sandbox.processes(), END_LIMIT_S, "processes are left")
    left = sandbox.processes()
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await supd.wait()
    return left


async def disturb_one_rank(sandbox: Sandbox, follow: asyncio.subprocess.Process, disturbance: Disturbance) -> int:
    """A signal from outside, at an instant that nothing in the training could know of; returns the pid."""
    await until(
        lambda: sandbox.saved_step() >= SAVED_STEP_MIN or follow.returncode is not None,
        RUN_LIMIT_S,
        f"training has not saved step {SAVED_STEP_MIN}",
    )
    if follow.returncode is not None:
        raise Deviation(f"training ended, and `supctl start` with {follow.returncode}, before anything was done to it")
    await asyncio.sleep(random.uniform(0, 1))
    ranks = (await sandbox.read("ps", JOB))["ranks"]
    pid = next((rank["pid"] for rank in ranks if rank["rank"] == VICTIM and rank["state"] == "running"), None)
    if pid is None:
        raise Deviation(f"rank {VICTIM} is not running, so nothing can be done to it")
    say(f"{disturbance.doing} rank {VICTIM} now: kill -{disturbance.signal.name.removeprefix('SIG')} {pid}")
    os.kill(pid, disturbance.signal)
    return int(pid)


async def verify(sandbox: Sandbox, pid: int, disturbance: Disturbance) -> None:
    """Compare what supd tells of the run, and what the training printed, with what must have happened."""
    (run,) = (await sandbox.read("status", JOB))["runs"]
    incident = run["incident"] or {}
    expected = {
        "state": (run["state"], "succeeded"),
        "restarts": (run["restarts_used"], 1),
        "generation": (run["generation"], 1),
        "rank of the incident": (incident.get("rank"), VICTIM),
        "pid of the incident": (incident.get("pid"), pid),
    }
    expected |= {f"{name} of the incident": (incident.get(name), word) for name, word in disturbance.incident.items()}
    for name, (seen, wanted) in expected.items():
        if seen != wanted:
            raise Deviation(f"{name} is {seen!r}, not {wanted!r}")

    printed = await sandbox.supctl("logs", JOB, "--gen", "all", "-r", "0", "--stream", "out", "--no-prefix")
    resumed = re.search(r"resuming from step (\d+) \(generation 1, reason: .+\)", printed)
    if resumed is None or int(resumed[1]) < SAVED_STEP_MIN:
        raise Deviation(f"generation 1 did not resume from step {SAVED_STEP_MIN} or a later one")
    scores = re.findall(r"held-out loss ([\d.]+) nats/char \(order-0 entropy ([\d.]+)\)", printed)
    first, last, entropy = float(scores[0][0]), float(scores[-1][0]), float(scores[-1][1])
    if not last < entropy < first:
        raise Deviation(f"held-out loss went from {first} to {last}, which does not pass the entropy of {entropy}")
    say(f"rank {VICTIM} {disturbance.done}; all ranks went on from step {resumed[1]}, and training succeeded")
    say(f"held-out loss {first} → {last} nats/char; the text's own order-0 entropy is {entropy}")


async def demonstrate(sandbox: Sandbox, disturbance: Disturbance) -> None:
    """The whole of it; raises Deviation where it goes another way than it should."""
    clock = asyncio.get_running_loop().time
    begun_s = clock()
    say(f"starting a supd with all its files in {sandbox.folder}")
    async with own_supd(sandbox):
        say(f"supctl start {JOB_FILE.relative_to(ROOT)} --follow")
        follow = await sandbox.start("supctl", "start", str(JOB_FILE.relative_to(ROOT)), "--follow")
        pid = await disturb_one_rank(sandbox, follow, disturbance)
        await until(lambda: follow.returncode is not None, RUN_LIMIT_S, "training has not ended")
        if follow.returncode != 0:
            raise Deviation(f"supctl start --follow ended with {follow.returncode}")
        await verify(sandbox, pid, disturbance)
    say(f"supd has ended and nothing is left running, {clock() - begun_s:.0f} s after the start")


async def until_signalled(sandbox: Sandbox, disturbance: Disturbance) -> int:
    """Returns the exit code. The first signal ends things in order; more are not needed, every wait has its limit."""
    task = asyncio.current_task()
    assert task is not None
    signals: list[int] = []

    def leave(number: int) -> None:
        if not signals:
            task.cancel()
        signals.append(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, leave, number)
    try:
        await demonstrate(sandbox, disturbance)
    except asyncio.CancelledError:
        return 128 + signals[0]
    return 0


def main() -> int:
    """Run in a folder that is gone afterwards."""
    parser = argparse.ArgumentParser(
        prog="quickstart", description="Train a small model, and disturb one of its ranks."
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--hang", action="store_true", help="stop one rank (SIGSTOP) instead of killing it")
    what.add_argument(
        "--nodes", type=int, choices=(3,), help="train on 3 nodes instead, of which one is taken out and in again"
    )
    options = parser.parse_args()
    if options.nodes:
        sys.path.insert(0, str(ROOT))
        from scripts import quickstart_nodes

        return quickstart_nodes.main(options.nodes)
    disturbance = STOP if options.hang else KILL
    # A unix socket's path is short; a TMPDIR need not be.
    parent = None if len(tempfile.gettempdir()) < 50 else "/tmp"
    with tempfile.TemporaryDirectory(prefix="supd-quickstart-", dir=parent) as name:
        sandbox = Sandbox(Path(name).resolve())
        try:
            return asyncio.run(until_signalled(sandbox, disturbance))
        except Deviation as exc:
            print(f"quickstart failed: {exc}\nthe last lines of supd's own log:", file=sys.stderr)
            print("\n".join(sandbox.supd_log.read_text(errors="replace").splitlines()[-20:]), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
