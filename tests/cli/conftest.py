"""A supd that says what a test scripted, on a real socket; and supctl in this process, with streams of its own."""

import io
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from protocol.framing import FrameDecoder, encode_frame
from protocol.messages import encode
from protocol.messages.control import (
    CONTROL_VERSION,
    Done,
    Failure,
    GetStatus,
    Greeting,
    Request,
    Resolve,
    RunStatus,
    Statuses,
    decode_greeting,
    decode_request,
)
from supervisor.cli import app

LIMIT_S = 20.0
GREETING = Greeting(control_version=CONTROL_VERSION, supd_version="9.9", node="n1")

Step = object
"""A message to send, bytes to send as they are, or a threading.Event to wait for."""

Script = Callable[[Request], Iterable[Step]]


@dataclass
class FakeDaemon:
    """Greets, reads one request a connection, plays the steps that `script` gives for it, hangs up."""

    address: str
    script: Script
    greeting: Step = GREETING
    requests: list[Request] = field(default_factory=list)
    greetings: list[Greeting] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.address)
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(LIMIT_S)
        self._listener.close()
        for thread in self._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive(), "a connection was left open"

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(LIMIT_S)
        decoder = FrameDecoder()
        with connection:
            try:
                if not _play(connection, self.greeting):
                    return
                payloads: list[bytes] = []
                while len(payloads) < 2:
                    data = connection.recv(1 << 16)
                    if not data:
                        return
                    payloads += decoder.feed(data)
                self.greetings.append(decode_greeting(payloads[0]))
                request = decode_request(payloads[1])
                self.requests.append(request)
                for step in self.script(request):
                    if not _play(connection, step):
                        return
            except (BrokenPipeError, ConnectionResetError):
                return  # the client had what it wanted


def _play(connection: socket.socket, step: Step) -> bool:
    match step:
        case None:
            return False
        case threading.Event():
            assert step.wait(LIMIT_S)
        case bytes():
            connection.sendall(step)
        case _:
            connection.sendall(encode_frame(encode(step)))
    return True


@dataclass
class Result:
    """How one call of supctl ended."""

    code: int
    out: str
    err: str


Supctl = Callable[..., Result]
"""supctl's arguments, `is_tty`, `encoding` -> Result."""
Daemon = Callable[..., FakeDaemon]
"""script, greeting -> a FakeDaemon that answers already."""


class Terminal(io.TextIOWrapper):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def address(tmp_path: Path) -> str:
    return str(tmp_path / "s")


@pytest.fixture
def daemon(address: str) -> Iterator[Daemon]:
    """Starts FakeDaemons, and sees to their end."""
    started: list[FakeDaemon] = []

    def start(script: Script, greeting: Step = GREETING) -> FakeDaemon:
        started.append(FakeDaemon(address, script, greeting))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def supctl(address: str, monkeypatch: pytest.MonkeyPatch) -> Supctl:
    """Calls supctl with these arguments, on streams in memory."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM", "LC_ALL", "LC_CTYPE", "SUPD_ADDR", "SUPCTL_JOB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "en_US.UTF-8")

    def call(*argv: str, is_tty: bool = False, encoding: str = "utf-8") -> Result:
        kind = Terminal if is_tty else io.TextIOWrapper
        out, err = (kind(io.BytesIO(), encoding=encoding, newline="") for _ in range(2))
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            code = app.run(["--addr", address, *argv])
        texts = []
        for stream in (out, err):
            stream.flush()
            assert isinstance(stream.buffer, io.BytesIO)
            texts.append(stream.buffer.getvalue().decode(encoding))
        return Result(code, *texts)

    return call


def a_run(**changes: object) -> RunStatus:
    """A run of four ranks on one node, running."""
    values: dict[str, object] = {
        "run": "hello@1a2b3c",
        "job": "hello",
        "state": "running",
        "phase": "running",
        "is_final": False,
        "generation": 0,
        "has_started": True,
        "ranks_running": 4,
        "ranks": 4,
        "nodes": ("n1",),
        "nnodes": (1, 1),
        "spares": (),
        "user": "ada",
        "submitted_wall_s": 1_800_000_000.0,
        "ended_wall_s": None,
        "reason": "",
        "waiting_for": "",
        "wait_left_s": None,
        "restarts_used": 0,
        "max_restarts": 10,
        "saved_step": None,
        "incident": None,
        "logs_dir": "/logs/hello@1a2b3c",
    }
    return RunStatus(**(values | changes))  # type: ignore[arg-type]


def one_run(run: RunStatus, *rest: Step) -> Script:
    """A script that knows one run: resolves to it, shows it, and plays `rest` for anything else."""

    def script(request: Request) -> Iterable[Step]:
        match request:
            case Resolve(word):
                known = word in ("", run.run, run.job)
                return [Done(run=run.run)] if known else [NO_SUCH_RUN]
            case GetStatus():
                return [Statuses(runs=(run,))]
            case _:
                return rest

    return script


NO_SUCH_RUN = Failure(code="F102", message="no run or job nosuch", hint="supctl status", exit_code=3)
