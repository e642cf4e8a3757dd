"""A real Slurm for tests: a controller on host a, a slurmd on each host, each in a network namespace.

Its processes are found by cgroup where the machine has a freezer, as on real clusters: a signal to a step goes to its
tasks alone, but SIGKILL to everything. Else they are found by descent, and every signal goes to everything.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from scripts.hosts.namespaces import Host, Hosts
from supervisor.shell.cgroup import remove_cgroup
from tests.e2e.supd import BIN, MARKER, TIMEOUT_S, carriers, wait_for
from tests.e2e.suprun import NOT_OURS, footprints

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "salloc", "sbatch", "scancel", "scontrol", "sinfo", "squeue")

FREEZER = Path("/sys/fs/cgroup/freezer")

CONF = """\
ClusterName=test
SlurmctldHost={controller}({address})
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
FirstJobId={first_job}
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ReturnToService=2
ProctrackType=proctrack/{tracking}
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
KillWait=10
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
NodeName={names} CPUs=2 RealMemory=500 State=UNKNOWN
PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


def why_no_slurm() -> str:
    """Why there is none here; "": there is."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"{missing[0]} is not installed" if missing else ""


class Slurm:
    """Nodes named as the hosts, all idle."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts = hosts
        self.marker = f"slurm-{os.getpid()}-{folder.name}"
        self.conf = folder / "slurm.conf"
        self.env = {**os.environ, "SLURM_CONF": str(self.conf), MARKER: self.marker}
        self.signals_tasks_alone = os.access(FREEZER / "cgroup.procs", os.W_OK)
        self._folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Write what it is told, start all of it, and wait until every node is idle."""
        folder, first = self._folder, next(iter(self.hosts.of.values()))
        (folder / "state").mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        names = ",".join(self.hosts.of)
        text = CONF.format(
            controller=first.name,
            address=first.address,
            folder=folder,
            names=names,
            tracking="cgroup" if self.signals_tasks_alone else "linuxproc",
            first_job=random.randrange(1, 60_000_000),  # cgroups are named by job: another Slurm may be here
        )
        self.conf.write_text(text)
        (folder / "cgroup.conf").write_text("CgroupPlugin=autodetect\nIgnoreSystemd=yes\nCgroupAutomount=no\n")
        files = {f"--{name}-file": folder / f"munge.{name}" for name in ("key", "pid", "log", "seed")}
        words = [f"{option}={path}" for option, path in files.items()]
        self._daemon("munged", "--foreground", "--force", f"--socket={folder}/munge.sock", *words)
        wait_for("munged", (folder / "munge.sock").exists)
        self._daemon(*first.argv("slurmctld", "-D", "-c", "-f", str(self.conf)))
        for host in self.hosts.of.values():
            (folder / f"spool-{host.name}").mkdir()
            self._daemon(*host.argv("slurmd", "-D", "-N", host.name, "-f", str(self.conf)))
        count = str(len(self.hosts.of))
        wait_for("all nodes to be idle", lambda: self.run("sinfo", "-h", "-o", "%D", "-t", "idle").strip() == count)

    def run(self, *words: str) -> str:
        """What a command of Slurm says."""
        argv = self.controller.argv(*words)
        return subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False).stdout

    def is_at_work(self, job: str) -> bool:
        """Whether a daemon of one of its steps, or of its batch script, is alive: titled `slurmstepd: [JOB.STEP]`."""
        for pid in carriers(self.marker):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(f"slurmstepd: [{job}.".encode()):
                    return True
        return False

    @property
    def controller(self) -> Host:
        """The host that commands run on."""
        return next(iter(self.hosts.of.values()))

    def _daemon(self, *argv: str) -> None:
        log = (self._folder / f"{len(self._daemons)}.log").open("wb")
        with log:
            self._daemons.append(subprocess.Popen(argv, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def close(self) -> None:
        """End all of it."""
        self.run("scancel", "--user=root")
        with contextlib.suppress(AssertionError):
            wait_for("the jobs to end", lambda: not self.run("squeue", "-h"), timeout_s=15)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()
            daemon.wait()
        for pid in carriers(self.marker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for host in self.hosts.of:
            remove_cgroup(str(FREEZER / f"slurm_{host}"))


class Step:
    """One command of Slurm's that starts tasks, and what came of it."""

    def __init__(self, slurm: Slurm, folder: Path) -> None:
        self.folder = folder
        self.marker = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._slurm = slurm
        self._env = {k: v for k, v in slurm.env.items() if not k.startswith((*NOT_OURS, "XDG_"))}
        self._env |= {
            "SLURM_CONF": str(slurm.conf),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            MARKER: self.marker,
        }
        self._output = folder / "out"
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(
        self,
        *words: str,
        program: str = "srun",
        options: Sequence[str] = ("--kill-on-bad-exit=1", "-N3", "--ntasks-per-node=1"),
    ) -> None:
        """Start it."""
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                self._slurm.controller.argv(program, f"--job-name={self.marker}", *options, *words),
                env=self._env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def submit(self, *words: str) -> str:
        """Hand in a batch script; returns the number of the job."""
        argv = self._slurm.controller.argv("sbatch", "--parsable", f"--job-name={self.marker}", *words)
        done = subprocess.run(argv, env=self._env, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    @property
    def text(self) -> str:
        """All that it has shown until now."""
        return self._output.read_text()

    @property
    def job(self) -> str:
        """Its job's number."""
        return self._slurm.run("squeue", "-h", "-o", "%i", f"--name={self.marker}").strip()

    def end(self) -> int:
        """Wait for its end; returns what it ended with."""
        assert self._process is not None
        return self._process.wait(TIMEOUT_S)

    def left(self) -> list[int]:
        """Processes of it that live."""
        return carriers(self.marker)

    def footprints(self) -> list[Path]:
        """Folders and cgroups that its runners have, now."""
        return footprints(self.left())

    def close(self) -> None:
        """End all of it."""
        self._slurm.run("scancel", f"--name={self.marker}")
        with contextlib.suppress(AssertionError):
            wait_for("the job to end", lambda: not self.job, timeout_s=20)
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait(TIMEOUT_S)


@contextlib.contextmanager
def running_slurm(hosts: Hosts, folder: Path) -> Iterator[Slurm]:
    """For the length of a `with` block."""
    slurm = Slurm(hosts, folder)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.close()
