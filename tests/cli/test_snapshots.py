"""What supctl prints, to the letter: tests/cli/snapshots/NAME.txt for every case below.

A snapshot has the command line, what came on stdout, what came on stderr (with `! ` in front) and the exit code.
To add a case, write it into CASES; after a change that is meant, write them anew and read the difference:

    REWRITE_SNAPSHOTS=1 python -m pytest tests/cli/test_snapshots.py
"""

import os
import shlex
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from protocol.errors import JobInvalid
from protocol.job_file import read_job
from protocol.messages.control import (
    Done,
    End,
    EventRecord,
    Failure,
    GetNodes,
    Incident,
    LogChunk,
    RankStatus,
    Request,
    Start,
    Statuses,
)
from tests.cli.conftest import Daemon, Script, Supctl, a_run, one_run
from tests.cli.test_nodes import a_node, with_nodes

FOLDER = Path(__file__).parent / "snapshots"

NOW_S = 1_800_000_000.0
"""2027-01-15 08:00:00 UTC."""

CLOCKS = ("supervisor.cli.status.wall_s",)
"""Where commands ask what time it is."""


def ago(hours: int, minutes: int = 0) -> float:
    """A point in time."""
    return NOW_S - hours * 3600 - minutes * 60


# --- what the daemon says ----------------------------------------------------------------------------------------

PROGRESS = {"step": 17_800, "total_steps": 50_000, "rate": 0.88, "eta_s": 36_600.0, "silent_s": 1.4, "loss": 2.314}
HELLO = {"run": "llama-7b@1a2b3c", "job": "llama-7b", "submitted_wall_s": ago(5, 58), "generation": 3}

INCIDENT = Incident(
    number=3,
    generation=2,
    cause="signal",
    summary="rank 11 on gpu-02 killed by SIGKILL (pid 71134), out of memory",
    node="gpu-02",
    rank=11,
    local_rank=3,
    pid=71134,
    signal="SIGKILL",
    shell_code=137,
    wall_s=ago(2, 5),
    evidence="cgroup oom_kill 0 → 1",
    stderr_tail=(b"[data] rebuilding shuffle index", b"\x1b[31mWARN\x1b[0m 64 workers \xff"),
)
LLAMA = a_run(**HELLO, **PROGRESS, ranks=32, ranks_running=32, nodes=("gpu-01",), restarts_used=3, saved_step=17_600)
STALLED = a_run(
    run="vit-abl@2",
    job="vit-abl",
    state="stalled",
    reason="rank 3 hangs",
    step=902,
    rate=0.0,
    silent_s=400.0,
    submitted_wall_s=ago(0, 22),
)
FAILED = a_run(
    run="bert-ft@3",
    job="bert-ft",
    state="failed",
    is_final=True,
    ranks_running=0,
    reason="rank 1 on n1 exited with code 7; restart budget spent (10 of 10)",
    submitted_wall_s=ago(3, 1),
    ended_wall_s=NOW_S,
    restarts_used=10,
    step=4_110,
)
FORMING = a_run(
    run="gpt@4",
    job="gpt",
    state="starting",
    phase="forming",
    generation=None,
    ranks=None,
    ranks_running=0,
    submitted_wall_s=ago(0, 4),
    waiting_for="the runner on n1",
    wait_left_s=41.0,
)


def fleet(_request: Request) -> list[object]:
    return [Statuses(runs=(LLAMA, STALLED, FAILED, FORMING))]


def a_rank(number: int, **more: object) -> RankStatus:
    values = {"node": "gpu-01", "local_rank": number, "pid": 70_000 + number, "state": "running", "step": 17_800}
    return RankStatus(rank=number, **(values | {"silent_s": 0.4} | more))  # type: ignore[arg-type]


END = {"state": "killed", "signal": "SIGSEGV", "shell_code": 139, "core_dumped": True, "ended_wall_s": NOW_S}
FEW = (
    a_rank(0, step=17_801),
    a_rank(1, silent_s=73.0, phase="checkpoint"),
    a_rank(2, state="stalled", silent_s=400.0, note="stopped (T), no beat for 400 s, limit 60 s (hang.step_timeout)"),
    a_rank(3, note="killed by SIGSEGV (core dumped)", **END),
)
MANY = tuple(a_rank(number, step=17_801 - number % 2) for number in range(64))


def with_ranks(*ranks: RankStatus) -> Script:
    return one_run(a_run(**HELLO, **PROGRESS, ranks=len(ranks), rank_list=ranks))


EVENTS = (
    EventRecord(id=1, wall_s=NOW_S, run="llama-7b@1a2b3c", generation=None, kind="job.accepted", text="by ada"),
    EventRecord(
        id=2,
        wall_s=NOW_S + 61,
        run="llama-7b@1a2b3c",
        generation=2,
        kind="incident.opened",
        text="rank 11 exited with code 1",
        detail={"stderr": "Traceback\nValueError: x"},
    ),
)


def said(rank: int, stream: str, data: bytes) -> LogChunk:
    return LogChunk(generation=3, node="gpu-01", rank=rank, stream=stream, data=data)


LOGS = (
    said(0, "out", b"step 17799 loss 2.309\nstep 17800 loss 2.301\n"),
    said(11, "err", "Traceback: Größe\n".encode()),
    End(),
)


def refused(_request: Request) -> list[object]:
    hint = "supctl stop llama-7b, or start it under another name"
    return [Failure(code="F103", message="llama-7b runs already, as llama-7b@1a2b3c", hint=hint, exit_code=75)]


def checks(request: Request) -> list[object]:
    """As supd does."""
    assert isinstance(request, Start)
    try:
        read_job(request.job_file, request.source)
    except JobInvalid as exc:
        return [Failure(code=exc.code, message=str(exc), hint=exc.hint, exit_code=exc.exit_code)]
    return [Done(run="llama@1a2b3c")]


AFTER_A_LOSS = (
    a_node("gpu-1", is_host=True, clock_off_s=None, seen_s=None, runs=("hello@1a2b3c",)),
    a_node("gpu-2", state="suspect", note="the runner of hello has been silent for 4 s", runs=("hello@1a2b3c",)),
    a_node(
        "gpu-3",
        state="unreachable",
        note="the runner of hello is reached only by way of a witness",
        runs=("hello@1a2b3c",),
    ),
    a_node("gpu-4", state="lost", note="was lost to hello, and not heard since", seen_s=75.0),
    a_node("gpu-5", state="fenced", note="the runner of hello had no answer for 4.5 s and ended its ranks"),
)


def waits_for_proof(request: Request) -> Iterable[object]:
    """A run without witnesses, on a node that is silent."""
    proof = "the word of its supd that its ranks are gone, or yours: supctl node lost gpu-2"
    waiting = f"proof for gpu-2 (silent for 400 s): {proof}"
    run = a_run(nodes=("gpu-1", "gpu-2"), nnodes=(2, 2), state="stopping", waiting_for=waiting)
    nodes = with_nodes(nodes=AFTER_A_LOSS[:2])
    return nodes(request) if isinstance(request, GetNodes) else one_run(run)(request)


BAD_JOB = 'nam = "llama"\n\n[run]\nscript = 3\n\n[stop]\ngrace = 300\n'
GOOD_JOB = 'name = "llama"\n\n[run]\ncommand = ["true"]\n'


# --- cases -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call of supctl. `columns` makes it one on a terminal; `env` is added to the environment."""

    argv: str
    script: Script | None = None  # None: there is no daemon
    columns: int | None = None
    env: dict[str, str] = field(default_factory=dict)
    encoding: str = "utf-8"
    job: str = GOOD_JOB  # ./job.toml


CASES = {
    "status": Case(argv="status", script=fleet),
    "status-80-columns": Case(argv="status", script=fleet, columns=80),
    "status-40-columns": Case(argv="status", script=fleet, columns=40),
    "status-wide": Case(argv="status --wide", script=fleet, columns=80, env={"NO_COLOR": "1"}),
    "status-check": Case(argv="status --check", script=fleet),
    "status-latin-1": Case(argv="status", script=fleet, env={"LANG": "de_DE"}, encoding="latin-1"),
    "status-c-locale": Case(argv="status", script=fleet, columns=80, env={"LANG": "C"}),
    "status-of-a-job": Case(
        argv="status llama-7b",
        script=one_run(a_run(**HELLO, **PROGRESS, saved_step=17_600, restarts_used=3, incident=INCIDENT)),
        env={"TZ": "UTC"},
    ),
    "status-of-a-stalled-job": Case(
        argv="status llama-7b", script=one_run(a_run(**HELLO, state="stalled", rank_list=FEW)), columns=80
    ),
    "ps": Case(argv="ps", script=with_ranks(*FEW)),
    "ps-80-columns": Case(argv="ps", script=with_ranks(*FEW), columns=80),
    "ps-dumb-terminal": Case(argv="ps", script=with_ranks(*FEW), columns=80, env={"TERM": "dumb"}),
    "ps-folded": Case(argv="ps", script=with_ranks(*MANY[:19], a_rank(19, step=17_700, silent_s=90.0), *MANY[20:])),
    "nodes-80-columns": Case(argv="nodes", script=with_nodes(), columns=80),
    "nodes-after-a-loss": Case(argv="nodes", script=with_nodes(nodes=AFTER_A_LOSS), columns=100),
    "status-of-a-job-that-waits-for-proof": Case(argv="status hello", script=waits_for_proof),
    "node-lost-without-a-terminal": Case(argv="node lost gpu-4", script=with_nodes(nodes=AFTER_A_LOSS)),
    "status-of-a-job-on-nodes": Case(argv="status hello", script=with_nodes()),
    "describe-node": Case(argv="describe node gpu-2", script=with_nodes()),
    "logs": Case(argv="logs", script=one_run(LLAMA, *LOGS)),
    "logs-c-locale": Case(argv="logs", script=one_run(LLAMA, *LOGS), env={"LANG": "C"}),
    "events": Case(argv="events", script=one_run(LLAMA, *EVENTS, End())),
    "no-daemon": Case(argv="status"),
    "no-such-job": Case(argv="ps nosuch", script=one_run(LLAMA)),
    "no-such-command": Case(argv="stauts"),
    "start-refused": Case(argv="start job.toml", script=refused),
    "start-invalid": Case(argv="start job.toml", script=checks, job=BAD_JOB),
    "validate-invalid": Case(argv="validate job.toml", job=BAD_JOB),
    "validate-invalid-terminal": Case(argv="validate job.toml", job=BAD_JOB, columns=80),
    "validate-valid": Case(argv="validate job.toml", script=checks),
}


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder, on UTC."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield folder
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("name", CASES)
def test_supctl_prints_what_the_snapshot_shows(
    name: str, supctl: Supctl, daemon: Daemon, address: str, in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    if case.script is not None:
        daemon(case.script)
    (in_folder / "job.toml").write_text(case.job)
    size = {} if case.columns is None else {"COLUMNS": str(case.columns)}
    for clock in CLOCKS:
        monkeypatch.setattr(clock, lambda: NOW_S)
    for variable, value in (size | case.env).items():
        monkeypatch.setenv(variable, value)
    result = supctl(*shlex.split(case.argv), is_tty=case.columns is not None, encoding=case.encoding)
    err = "".join(f"! {line}\n" for line in result.err.splitlines())
    shown = f"$ supctl {case.argv}\n{result.out}{err}exit {result.code}\n"
    shown = shown.replace(address, "SOCKET").replace(str(in_folder), "FOLDER").replace("\x1b", "␛")
    path = FOLDER / f"{name}.txt"
    if os.environ.get("REWRITE_SNAPSHOTS"):
        path.write_text(shown)
    assert shown == path.read_text()


def test_every_snapshot_has_a_case() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(CASES)
