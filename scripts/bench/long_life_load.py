"""The life of a coordinator and its node in a few minutes: supd's own machines, journal and files, and runners that
only say what real ones say.

    long_life_load.py FOLDER RUNS GENERATIONS

Finishes RUNS runs of one generation each, then fails GENERATIONS generations of another run; with every tenth of them
its runner dies. FOLDER is the state folder. On its stdout is a JSON list of what was there after each tenth of each.
"""

import asyncio
import contextlib
import gc
import json
import os
import resource
import secrets
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import uvloop

import supervisor.daemon.jobs
from protocol import coordinator_events as c
from protocol.job import JobSpec, RestartTable, RunTable, Submitter, TopologyTable
from protocol.messages.fleet import RunnerBuried
from protocol.messages.member import (
    Answer,
    Offer,
    Part,
    RankExit,
    RankReport,
    Release,
    Renewal,
    Run,
    Stop,
    decode_to_runner,
)
from protocol.timing import DEFAULTS
from supervisor.daemon.jobs import Jobs
from supervisor.daemon.journal import Journal
from supervisor.daemon.old_files import OldFiles
from supervisor.daemon.retention import Keep
from supervisor.daemon.starting import Starting
from supervisor.logs import marks
from supervisor.logs.paths import generation_dir
from supervisor.shell.clock import wall_s
from supervisor.shell.config import Config, load_config
from supervisor.shell.log_setup import set_up_log

NODE = "n1"
NPROC = 4
RENEW_S = 0.5
SAMPLES = 10
DIES_EVERY = 10
LOG_BYTES = 2000
"""About what a runner says of itself."""


class Host:
    """The coordinator, and the node table and the node as far as runs care."""

    def __init__(self, config: Config, journal: Journal) -> None:
        self.config = config
        self.journal = journal
        self.runners: dict[str, Runner] = {}  # by run
        self.has_ended = asyncio.Event()  # a runner
        self.group: asyncio.TaskGroup | None = None
        self.files = OldFiles(config, self.runners.__contains__)
        self.jobs = Jobs(
            journal,
            config.logs_dir,
            1,
            on_wanted=self._on_wanted,
            on_unlinked=lambda node: None,
            on_seated=lambda: None,
            on_blamed=lambda node: None,
            on_epoch=lambda epoch: None,
            before_epoch=_nobody_else_leads,
            timing=DEFAULTS,
            keeps_isolated=False,
            keep=Keep(config.keep_runs, config.keep_days),
        )
        self.starting = Starting(self.jobs, journal, None)
        self._wanted: set[str] = set()

    def spawn(self, work: Any) -> None:
        """Begin a task of its own."""
        assert self.group is not None
        self.group.create_task(work)

    def _on_wanted(self, run: str, nodes: frozenset[str]) -> None:
        (self._wanted.add if nodes else self._wanted.discard)(run)
        self.start_runner(run)

    def start_runner(self, run: str) -> None:
        """Where one is wanted and none is there."""
        if run in self._wanted and run not in self.runners:
            self.runners[run] = Runner(self, run)

    async def is_without(self, run: str) -> None:
        """Until the run has no runner."""
        while run in self.runners:
            self.has_ended.clear()
            await self.has_ended.wait()

    async def tidy(self) -> None:
        """What a node does once a minute: ask which of its runs are forgotten, and remove these."""
        for run in await asyncio.to_thread(self.files.look, wall_s()):
            if self.jobs.is_forgotten(run):
                await asyncio.to_thread(self.files.remove_run, run)


class Runner:
    """Stands for a runner, and for its connection to the coordinator."""

    def __init__(self, host: Host, run: str) -> None:
        self._host, self._run = host, run
        self._incarnation = secrets.token_hex(8)
        self._number, self._port = 0, 20_000
        self._generation, self._part = -1, Part.IDLE
        self._exit: RankExit | None = None
        self._is_gone = False
        self._run_dir = host.config.state_dir / "runs" / run
        self._logs_dir = host.config.logs_dir / run
        self._run_dir.mkdir(parents=True, exist_ok=True)
        self._logs_dir.mkdir(parents=True, exist_ok=True)
        output = generation_dir(self._logs_dir, 0)  # of later ones a runner keeps [logs] keep_generations
        output.mkdir(exist_ok=True)
        (output / "rank-00000.out").write_bytes(bytes(LOG_BYTES))
        marks.begin(self._logs_dir, marks.owner(NODE, host.config.state_dir))
        (self._run_dir / f"{self._incarnation}.log").write_bytes(b"{}\n" * (LOG_BYTES // 3))
        host.jobs.on_runner_linked(self._job, self._incarnation, cast("Any", self))
        host.spawn(self._renew())

    @property
    def _job(self) -> Any:
        return self._host.jobs.runs[self._run]

    def send(self, frame: bytes) -> None:
        """The coordinator says something."""
        match decode_to_runner(frame):
            case Answer(order=Run(assignment=seat)) if seat.generation > self._generation:
                self._host.spawn(self._live(seat.generation))
            case Answer(order=Stop()) if self._part is Part.STOPPING:
                self._become(Part.STOPPED)
            case Answer(order=Release()) if not self._is_gone:
                self._host.spawn(self._end())
            case _:
                pass

    async def _live(self, generation: int) -> None:
        """One generation, from its spawn to the end of its ranks."""
        self._generation, self._exit = generation, None
        self._port = 20_000 + (generation + 1) % 2  # never the last generation's
        self._become(Part.LAUNCHED)
        self._become(Part.RUNNING)
        await asyncio.sleep(0)
        is_good = self._job.name == "quick"
        self._exit = RankExit(
            code=0 if is_good else 1,
            order=0,
            wall_s=wall_s(),
            ran_s=0.1,
            stopped_by_us=False,
            stderr_tail=(b"no luck",),
        )
        if not is_good and generation % DIES_EVERY == DIES_EVERY - 1:
            await self._end()
        else:
            self._become(Part.FINISHED if is_good else Part.STOPPING)

    async def _renew(self) -> None:
        while not self._is_gone:
            self._say()
            await asyncio.sleep(RENEW_S)

    def _become(self, part: Part) -> None:
        self._part = part
        self._say()

    def _say(self) -> None:
        if not self._is_gone:
            self._number += 1
            self._host.jobs.on_runner_heard(self._job, NODE, self._incarnation, self._renewal())

    def _renewal(self) -> Renewal:
        is_free = self._part in (Part.IDLE, Part.STOPPED, Part.FINISHED)
        ranks = tuple(
            RankReport(
                rank=rank, local_rank=rank, pid=1000 + rank, started=True, exit=self._exit, step=self._generation
            )
            for rank in range(NPROC if self._part is not Part.IDLE else 0)
        )
        offer = Offer(slots=NPROC, address="127.0.0.1", port=self._port, witness_port=1) if is_free else None
        return Renewal(
            number=self._number,
            generation=self._generation,
            part=self._part,
            ranks=ranks,
            saved_step=self._generation if self._generation >= 0 else None,
            offer=offer,
        )

    async def _end(self) -> None:
        """It is gone, with all that was below it; its node tells, and then tidies up."""
        if self._is_gone:
            return  # it was released as it died
        self._is_gone = True
        job, last = self._job, self._renewal()
        (self._run_dir / f"{self._incarnation}.record").write_bytes(bytes(500))
        job.channels.pop(self._incarnation, None)
        marks.end(self._logs_dir, marks.owner(NODE, self._host.config.state_dir))
        del self._host.runners[self._run]
        self._host.has_ended.set()
        buried = RunnerBuried(run=self._run, incarnation=self._incarnation, last=last)
        await self._host.jobs.on_runner_gone(NODE, buried)
        await asyncio.to_thread(self._host.files.forget_runner, self._incarnation)
        self._host.start_runner(self._run)


async def _nobody_else_leads(_epoch: int) -> None:
    """There is one coordinator."""


def _job(name: str) -> JobSpec:
    return JobSpec(
        name=name,
        run=RunTable(command=("true",)),
        topology=TopologyTable(nproc_per_node=NPROC),
        restart=RestartTable(max_restarts=-1, backoff_s=0.0, on_startup_failure="restart"),
    )


SUBMITTER = Submitter(
    folder="/", source="job.toml", python="python3", env={b"PATH": b"/bin"}, limits={}, umask=0o22, user="me"
)


async def _until(job: Any, is_so: Callable[[], bool]) -> None:
    bell = job.changes.listen()
    try:
        while not is_so():
            bell.clear()
            await bell.wait()
    finally:
        job.changes.leave(bell)


async def _finish(host: Host, number: int) -> None:
    """One run, from its start to the end of its runner."""
    run = await host.starting.start(_job("quick"), SUBMITTER, f"quick-{number}")
    job = host.jobs.runs[run]
    await _until(job, lambda: job.is_settled)
    await host.is_without(run)


def _sample(folder: Path, host: Host, what: str, count: int) -> dict[str, str | int | float]:
    gc.collect()
    status = Path("/proc/self/status").read_text()
    rss = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    names = [Path(where, name) for where, _, files in os.walk(folder) for name in files]
    return {
        "what": what,
        "count": count,
        "rss_mib": rss / 1024,
        "objects": len(gc.get_objects()),
        "files": len(names),
        "journal_mib": sum(name.stat().st_size for name in names if name.name.startswith("journal.db")) / 2**20,
        "runs": len(host.jobs.runs),
        "events": _events(folder),
    }


def _events(folder: Path) -> int:
    """How many the journal has."""
    with contextlib.closing(sqlite3.connect(folder / "journal.db")) as db:
        return int(db.execute("SELECT count(*) FROM events").fetchone()[0])


async def _fail(folder: Path, host: Host, generations: int) -> list[dict[str, str | int | float]]:
    """One run whose generations fail, until it is stopped."""
    run = await host.starting.start(_job("long"), SUBMITTER, "long")
    job, samples, step = host.jobs.runs[run], [], max(1, generations // SAMPLES)
    for until in range(step, generations + 1, step):
        await _until(job, lambda until=until: job.machine.generation >= until)  # type: ignore[misc]
        await host.tidy()
        samples.append(_sample(folder, host, "generations", until))
    await host.jobs.ask(job, c.StopRequested(grace_s=None, now=True, by="me"))
    await _until(job, lambda: job.is_settled)
    await host.is_without(run)
    return samples


async def live(folder: Path, runs: int, generations: int) -> list[dict[str, str | int | float]]:
    """All of it."""
    (folder / "supd.toml").write_text(
        f'[node]\nname = "{NODE}"\n[listen]\ncontrol = "{folder}/c.sock"\npeer = "127.0.0.1:0"\n'
        f'[state]\ndir = "{folder}"\nmin_free = "0%"\n'
    )
    config = load_config(folder / "supd.toml", {"HOME": "/"})
    journal = Journal(config.state_dir / "journal.db")
    host = Host(config, journal)
    samples = []
    async with asyncio.TaskGroup() as host.group:
        driving = host.group.create_task(host.jobs.run(await journal.runs()))
        await asyncio.sleep(0)
        host.jobs.on_roster(lambda: (c.RosterNode(NODE, is_up=True),))
        samples.append(_sample(folder, host, "nothing", 0))
        for number in range(1, runs + 1):
            await _finish(host, number)
            if number % max(1, runs // SAMPLES) == 0:
                await host.tidy()
                samples.append(_sample(folder, host, "runs", number))
        if generations:
            samples += await _fail(folder, host, generations)
        driving.cancel()
    journal.close()
    return samples


def main() -> None:
    """The command."""
    set_up_log("warning", "json")
    supervisor.daemon.jobs.REMEMBER_S = 0.0  # no runner can come that tells of a run of before
    folder, runs, generations = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    print(json.dumps(uvloop.run(live(folder, runs, generations))))


if __name__ == "__main__":
    main()
