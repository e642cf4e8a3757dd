"""What is compared: supd, torchrun, and the floor, a bare loop of subprocess.Popen. All start the same worker.

Every process that comes of a side carries BENCH_MARK in its environment, by which it is found, measured and ended.
"""

import contextlib
import ctypes
import os
import py_compile
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from install import clean_env

T = TypeVar("T")

LIMIT_S = 60.0
"""No wait is longer: then the measurement has failed."""

LOOK_S = 0.005


class MeasurementFailed(Exception):
    """A side did not do what is to be measured."""


def now_s() -> float:
    """The clock of the stamps."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def cpu_s(pid: int) -> float:
    """CPU time of all threads of a process so far, to the nanosecond (clock_getcpuclockid(3))."""
    clock = ctypes.c_int()
    if ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)):
        raise ProcessLookupError(pid)
    return time.clock_gettime(clock.value)


def pause(seconds: float) -> None:
    """Let time pass: between two looks, or for what has to settle."""
    time.sleep(seconds)  # noqa: TID251  # the one place


def wait_for(what: str, look: Callable[[], T | None], limit_s: float = LIMIT_S) -> T:
    """Look again and again until there is something to see (anything but None and False)."""
    until_s = now_s() + limit_s
    while now_s() < until_s:
        seen = look()
        if seen is not None and seen is not False:
            return seen
        pause(LOOK_S)
    raise MeasurementFailed(f"waited {limit_s:g} s for {what}")


class Stamp(NamedTuple):
    """What a worker has said."""

    event: str
    rank: int
    pid: int
    at_s: float


class Side(ABC):
    """One way to start workers: `start`, `stop`, again and again; `close` leaves nothing behind."""

    name: str

    def __init__(self, commands: Path) -> None:
        self.commands = commands
        self.python = str(commands / "python")
        self.folder = Path(tempfile.mkdtemp(prefix="supd-bench-"))
        self.mark = self.folder.name
        self.worker = self.folder / "worker.pyc"
        py_compile.compile(str(Path(__file__).with_name("worker.py")), str(self.worker), doraise=True)
        self.stamps_file = self.folder / "stamps"
        self.env = clean_env() | {"BENCH_MARK": self.mark, "BENCH_STAMPS": str(self.stamps_file)}

    # --- one generation, or several ------------------------------------------------------------------------------

    def start(self, ranks: int) -> float:
        """Start that many workers; returns when the first call was made."""
        self.stamps_file.write_text("")
        return self._start(ranks)

    @abstractmethod
    def _start(self, ranks: int) -> float: ...

    @abstractmethod
    def stop(self) -> None:
        """End all workers, and wait for that."""

    def first_lines(self, ranks: int, after_s: float = 0.0) -> list[Stamp]:
        """Wait until so many workers have begun; in the order of their first lines."""

        def look() -> list[Stamp] | None:
            found = [stamp for stamp in self.stamps() if stamp.event == "started" and stamp.at_s > after_s]
            return found if len(found) >= ranks else None

        return sorted(wait_for(f"{ranks} first lines of {self.name}", look), key=lambda stamp: stamp.at_s)

    def fail(self, victim: Stamp, how: str) -> float:
        """Let a worker die, by "exit" or by "kill"; returns when it did."""
        if how == "kill":
            died_s = now_s()
            os.kill(victim.pid, signal.SIGKILL)
            return died_s
        os.kill(victim.pid, signal.SIGUSR1)
        deaths = wait_for("the death", lambda: [stamp for stamp in self.stamps() if stamp.event == "died"] or None)
        return deaths[0].at_s

    def stamps(self) -> list[Stamp]:
        """Everything said since `start`."""
        lines = [line.split() for line in self.stamps_file.read_text().splitlines()]
        return [Stamp(event, int(rank), int(pid), float(at_s)) for event, rank, pid, at_s in lines]

    # --- its processes -------------------------------------------------------------------------------------------

    def processes(self) -> list[int]:
        """Every living process that came of this side."""
        mark = f"BENCH_MARK={self.mark}".encode()
        found = []
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):  # ended meanwhile
                if mark in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                    found.append(int(name))
        return found

    def own_processes(self) -> list[int]:
        """The same without the workers: what the side itself costs."""
        workers = {stamp.pid for stamp in self.stamps()}
        return [pid for pid in self.processes() if pid not in workers]

    def close(self) -> None:
        """End what is left, by pid, and remove the folder."""
        with contextlib.suppress(MeasurementFailed):
            wait_for(f"the end of {self.name}", self._killed, limit_s=10)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _killed(self) -> bool:
        left = self.processes()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    def _popen(self, argv: list[str], output: str, **more: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{output}.out").open("ab") as out, (self.folder / f"{output}.err").open("ab") as err:
            return subprocess.Popen(
                argv,
                env=self.env | more,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def _tail(self, output: str) -> str:
        return (self.folder / f"{output}.err").read_text(errors="replace")[-2000:]


class Floor(Side):
    """The least that any supervisor has to do: one Popen a rank, with its variables, output going to files."""

    name = "floor"

    def __init__(self, commands: Path) -> None:
        super().__init__(commands)
        self._workers: list[subprocess.Popen[bytes]] = []

    def _start(self, ranks: int) -> float:
        variables = [self._variables(rank, ranks) for rank in range(ranks)]
        begun_s = now_s()
        for rank, own in enumerate(variables):
            self._workers.append(self._popen([self.python, str(self.worker)], f"rank-{rank}", **own))
        return begun_s

    @staticmethod
    def _variables(rank: int, ranks: int) -> dict[str, str]:
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        fixed = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "OMP_NUM_THREADS": "1"}
        python = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}  # as supd's workers have it
        return {name: str(value) for name, value in own.items()} | fixed | python

    def stop(self) -> None:
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            worker.wait(LIMIT_S)
        self._workers.clear()

    def close(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.stop()
        super().close()


class Torchrun(Side):
    """One torchrun a start, with its defaults: `torchrun --standalone --nproc-per-node N --max-restarts 3`."""

    name = "torchrun"

    def __init__(self, commands: Path) -> None:
        super().__init__(commands)
        self.env |= {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "TMPDIR": str(self.folder)}
        self._agent: subprocess.Popen[bytes] | None = None

    def _start(self, ranks: int) -> float:
        options = ["--standalone", "--nproc-per-node", str(ranks), "--max-restarts", "3"]
        begun_s = now_s()
        self._agent = self._popen([str(self.commands / "torchrun"), *options, str(self.worker)], "torchrun")
        return begun_s

    def stop(self) -> None:
        if self._agent is not None:
            self._agent.terminate()
            self._agent.wait(LIMIT_S)
            self._agent = None

    def close(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.stop()
        super().close()
        if self._agent is not None:
            self._agent.wait()


class Launcher(Side):
    """A launcher in the foreground, one a node, all on this machine: `suprun`, or `torchrun`, with the same words."""

    def __init__(self, commands: Path, name: str, nodes: int = 1) -> None:
        self.name = name
        super().__init__(commands)
        self._nodes = nodes
        self.env |= {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "XDG_CONFIG_HOME": str(self.folder)}
        # As in an active environment: both start its python, and no `python3` of PATH that is a slow script.
        self.env |= {"VIRTUAL_ENV": str(commands.parent), "PATH": f"{commands}:{os.environ['PATH']}"}
        self._launchers: list[subprocess.Popen[bytes]] = []

    def _start(self, ranks: int) -> float:
        words = ["--standalone"]
        if self._nodes > 1:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
            words = [f"--nnodes={self._nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=bench"]
        argv = [str(self.commands / self.name), *words, f"--nproc-per-node={ranks // self._nodes}", str(self.worker)]
        begun_s = now_s()
        self._launchers = [self._popen(argv, self.name) for _ in range(self._nodes)]
        return begun_s

    def stop(self) -> None:
        for launcher in self._launchers:
            launcher.terminate()
        for launcher in self._launchers:
            launcher.wait(LIMIT_S)
        self._launchers.clear()

    def close(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.stop()
        super().close()
        for launcher in self._launchers:
            launcher.wait()


class Supd(Side):
    """A supd of its own, running; `supctl start` a start."""

    name = "supd"

    def __init__(self, commands: Path) -> None:
        super().__init__(commands)
        control = self.folder / "control.sock"
        self.env |= {"SUPD_ADDR": str(control)}
        config = self.folder / "supd.toml"
        config.write_text(
            f'[listen]\ncontrol = "{control}"\npeer = "127.0.0.1:0"\n[state]\ndir = "{self.folder}/state"\n'
        )
        self.tables = ""  # more TOML of the job
        self._client: subprocess.Popen[bytes] | None = None
        self._used: set[str] = set()
        self._daemon = self._popen([str(commands / "supd"), "run", "--config", str(config)], "supd")
        try:
            wait_for("supd to answer", self._answers)
        except BaseException:
            self.close()
            raise

    def _answers(self) -> bool:
        if self._daemon.poll() is not None:
            raise MeasurementFailed(f"supd ended with {self._daemon.returncode}: {self._tail('supd')}")
        return self.supctl("status", check=False) == 0

    def supctl(self, *args: str, check: bool = True) -> int:
        """Run supctl to its end; returns its exit code."""
        client = self._popen([str(self.commands / "supctl"), *args], "supctl")
        code = client.wait(LIMIT_S)
        if check and code:
            raise MeasurementFailed(f"supctl {' '.join(args)} ended with {code}: {self._tail('supctl')}")
        return code

    def _start(self, ranks: int) -> float:
        job = self.folder / "job.toml"
        job.write_text(
            f'name = "bench"\n[run]\nscript = "{self.worker}"\npython = "{self.python}"\n'
            f'[topology]\nnproc_per_node = {ranks}\n[restart]\nbackoff = "0s"\nmax_restarts = 10\n{self.tables}'
        )
        self._used = self._runners()
        begun_s = now_s()
        self._client = self._popen([str(self.commands / "supctl"), "start", str(job)], "supctl")
        return begun_s

    def stop(self) -> None:
        if self._client is not None:
            code = self._client.wait(LIMIT_S)
            if code:
                raise MeasurementFailed(f"supctl start ended with {code}: {self._tail('supctl')}")
            self._client = None
        self.supctl("stop", "bench", "--now")
        # supd makes the next runner ready a moment after a start. That must not fall into what is measured next.
        wait_for("the next ready runner", lambda: self._runners() and not self._runners() & self._used)

    def _runners(self) -> set[str]:
        """The runners there are, by the names of their locks."""
        return {lock.name for lock in (self.folder / "state" / "runners").glob("*.lock")}

    def close(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._daemon.poll() is None:
                self.supctl("stop", "--all", "--now", check=False)
                self._daemon.terminate()
                self._daemon.wait(LIMIT_S)
        super().close()


SIDES: tuple[type[Side], ...] = (Supd, Torchrun, Floor)


@contextlib.contextmanager
def opened(commands: Path, kinds: Iterable[Callable[[Path], Side]]) -> Iterator[list[Side]]:
    """The sides, ready to start; closed afterwards whatever happens."""
    with contextlib.ExitStack() as stack:
        sides = []
        for kind in kinds:
            side = kind(commands)
            stack.callback(side.close)
            sides.append(side)
        yield sides


def settle() -> None:
    """Let everything of a generation come to rest, for an instant of torchrun's poll (0.1 s) that nobody chooses."""
    pause(1.0 + random.uniform(0, 0.1))
