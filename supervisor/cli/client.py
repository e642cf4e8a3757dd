"""supctl's side of the control socket: one blocking connection a request.

Whatever keeps a supd from answering (absent, hung, of another version, gone in the middle) ends in one
`Unavailable` with its next step; nothing else of the network gets past this file.
"""

import math
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

from protocol.errors import Problem, ProtocolError, Refused, RemoteProtocolError, SupdError
from protocol.exit_code import ExitCode
from protocol.framing import FrameDecoder, encode_frame
from protocol.messages import encode
from protocol.messages.control import (
    CONTROL_VERSION,
    ControlReply,
    Done,
    End,
    Failure,
    GetStatus,
    Greeting,
    Request,
    Resolve,
    RunStatus,
    Statuses,
    decode_greeting,
    decode_reply,
)
from supervisor.shell.clock import boot_s

GREETING_TIMEOUT_S = 5.0
REPLY_TIMEOUT_S = 30.0
"""For requests with one reply; the slowest is a start, which the journal writes to disk first."""
SILENT_S = 2.0
"""A wait longer than this says what it waits for."""
PROBE_AFTER_S = 10.0
"""A stream that was silent for this long is asked, on a second connection, whether its supd still lives."""
RECEIVE_BYTES = 256 * 1024

R = TypeVar("R", bound=ControlReply)


class Unavailable(SupdError):
    """There is no supd that answers."""

    exit_code = ExitCode.UNAVAILABLE

    def __init__(self, code: str, message: str, hint: str) -> None:
        self.code = code
        self.hint = hint
        super().__init__(message)


class ConnectionLost(Unavailable):
    """supd went away after it had taken the connection: whether it took the request is not known."""

    def __init__(self, address: str) -> None:
        super().__init__("C004", f"supd at {address} went away in the middle; runs go on without it", "supctl status")


class Client:
    """Asks the supd at `address`, the path of its unix socket.

    With `owners`, only one that runs as one of these uids: a start hands over the whole environment, and the
    default path may lie in /tmp. `tell` is given a line when supd keeps us waiting. `default_job` (SUPCTL_JOB) is
    meant where no job is named. At `deadline_s` (on the clock of `boot_s`) every wait ends.
    """

    def __init__(
        self,
        address: str,
        tell: Callable[[str], None],
        *,
        owners: tuple[int, ...] = (),
        default_job: str = "",
        deadline_s: float = math.inf,
    ) -> None:
        self.address = address
        self.default_job = default_job
        self._tell = tell
        self._owners = owners
        self._deadline_s = deadline_s

    def hurried(self, deadline_s: float) -> "Client":
        """The same, but it waits for nothing longer than to this time, and says nothing meanwhile."""
        return Client(
            self.address, lambda _text: None, owners=self._owners, default_job=self.default_job, deadline_s=deadline_s
        )

    def greet(self) -> Greeting:
        """The daemon's greeting, whatever its version."""
        with self._connect() as connection:
            connection.send(b"")
            return connection.receive_greeting()

    def ask(self, request: Request, expected: type[R]) -> R:
        """The one reply to `request`.

        Raises Refused where supd says no, Unavailable where it says nothing.
        """
        with self._connect() as connection:
            _open(connection, request)
            reply = _decode(self.address, connection.receive_or_fail(REPLY_TIMEOUT_S))
            if not isinstance(reply, expected):
                raise _nonsense(self.address, f"a {type(reply).__name__} for a {type(request).__name__}")
            return reply

    def stream(self, request: Request, tick_s: float) -> Iterator[ControlReply | None]:
        """The replies to `request` up to its End, as they come; None whenever nothing came for `tick_s`.

        A caller that has seen enough before just stops. Raises as `ask` does.
        """
        with self._connect() as connection:
            _open(connection, request)
            silent_s = 0.0
            while True:
                payload = connection.receive(tick_s)
                if payload is not None:
                    reply = _decode(self.address, payload)
                    if isinstance(reply, End):
                        return
                    silent_s = 0.0
                    yield reply
                    continue
                silent_s += tick_s
                if silent_s >= PROBE_AFTER_S:
                    self.greet()
                    silent_s = 0.0
                yield None

    def _connect(self) -> "_Connection":
        return _Connection(self.address, self._tell, self._owners, self._deadline_s)

    def resolve(self, word: str | None) -> str:
        """The run that NAME, NAME@HEX or None (`default_job`, else the only active one, else the newest) means."""
        try:
            return self.ask(Resolve(word=word or self.default_job), Done).run
        except Refused as exc:
            if word or not self.default_job or exc.exit_code != ExitCode.NOT_FOUND:
                raise
            message = f"{exc} (SUPCTL_JOB names it)"
            hint = "name a job, or unset SUPCTL_JOB; supctl status lists them"
            raise Refused(exc.code, message, hint=hint, exit_code=exc.exit_code) from None

    def status(self, run: str, *, with_ranks: bool = False) -> RunStatus:
        """One run as it stands."""
        runs = self.ask(GetStatus(run=run, with_ranks=with_ranks), Statuses).runs
        if not runs:
            raise Refused("C008", f"no run {run}", hint="supctl status", exit_code=ExitCode.NOT_FOUND)
        return runs[0]


class _Connection:
    """One connection: frames out, frames in, with a limit on every wait."""

    def __init__(self, address: str, tell: Callable[[str], None], owners: tuple[int, ...], deadline_s: float) -> None:
        self._address = address
        self._tell = tell
        self._deadline_s = deadline_s
        self._decoder = FrameDecoder()
        self._payloads: deque[bytes] = deque()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connect(owners)
        except BaseException:
            self._socket.close()
            raise

    def _connect(self, owners: tuple[int, ...]) -> None:
        # A full backlog blocks connect(2) for as long as SO_SNDTIMEO says; Python's own timeout would make it fail
        # at once, which a burst of clients must not.
        timeout_s = self._at_most(GREETING_TIMEOUT_S)
        seconds, fraction = divmod(timeout_s, 1)
        limit = struct.pack("ll", int(seconds), int(fraction * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        try:
            self._socket.connect(self._address)
        except BlockingIOError:
            raise _hung(self._address, timeout_s) from None
        except PermissionError:
            raise _not_allowed(f"not allowed to use {self._address}") from None
        except OSError as exc:
            raise _absent(self._address, exc) from None
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _pid, uid, _gid = struct.unpack("3i", credentials)
        if owners and uid not in owners:
            raise _not_allowed(f"what answers at {self._address} belongs to uid {uid}")

    def __enter__(self) -> "_Connection":
        return self

    def __exit__(self, *_exc: object) -> None:
        self._socket.close()

    def send(self, request: bytes) -> None:
        """Our greeting and, right behind it, the frames of `request`."""
        greeting = encode_frame(encode(Greeting(control_version=CONTROL_VERSION, supd_version="")))
        timeout_s = self._at_most(GREETING_TIMEOUT_S)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.sendall(greeting + request)
        except TimeoutError:
            raise _hung(self._address, timeout_s) from None
        except OSError:
            return  # it closed early; its greeting, if it left one, says why

    def receive_greeting(self) -> Greeting:
        payload = self.receive_or_fail(GREETING_TIMEOUT_S)
        try:
            return decode_greeting(payload)
        except RemoteProtocolError as exc:
            raise _nonsense(self._address, str(exc)) from exc

    def receive_or_fail(self, timeout_s: float) -> bytes:
        """The payload of the next frame; a supd that sends none within `timeout_s` is hung."""
        timeout_s = self._at_most(timeout_s)
        payload = self.receive(min(SILENT_S, timeout_s))
        if payload is None and timeout_s > SILENT_S:
            self._tell(f"… waiting for supd at {self._address} to answer, {timeout_s - SILENT_S:.0f}s left")
            payload = self.receive(timeout_s - SILENT_S)
        if payload is None:
            raise _hung(self._address, timeout_s)
        return payload

    def receive(self, timeout_s: float) -> bytes | None:
        """The payload of the next frame; None where it is not complete within `timeout_s`."""
        until_s = boot_s() + timeout_s
        while not self._payloads:
            left_s = until_s - boot_s()
            if left_s <= 0:
                return None
            self._socket.settimeout(left_s)
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except TimeoutError:
                return None
            except OSError:
                data = b""
            if not data:
                raise ConnectionLost(self._address)
            try:
                self._payloads.extend(self._decoder.feed(data))
            except RemoteProtocolError as exc:
                raise _nonsense(self._address, str(exc)) from exc
        return self._payloads.popleft()

    def _at_most(self, timeout_s: float) -> float:
        """So long, or to the deadline; never 0, which sockets take for no wait, or for no limit."""
        return max(min(timeout_s, self._deadline_s - boot_s()), 0.001)


def _open(connection: _Connection, request: Request) -> None:
    """Greet both ways and hand over the request."""
    try:
        frame = encode_frame(encode(request))
    except ProtocolError as exc:
        hint = "unset large variables of this shell, or set `run.inherit_env` to what the job needs"
        raise Refused("C007", f"the request is too large: {exc}", hint=hint) from exc
    except UnicodeEncodeError as exc:
        hint = "use names and folders that are UTF-8"
        raise Refused("C013", f"{exc.object!a} is not UTF-8", hint=hint, exit_code=ExitCode.USAGE) from None
    connection.send(frame)
    theirs = connection.receive_greeting()
    if theirs.control_version != CONTROL_VERSION:
        raise _other_version(theirs)


def _decode(address: str, payload: bytes) -> ControlReply:
    try:
        reply = decode_reply(payload)
    except RemoteProtocolError as exc:
        raise _nonsense(address, str(exc)) from exc
    if isinstance(reply, Failure):
        problems = tuple(Problem(p.code, p.key, p.value, p.message, p.hint, place=p.place) for p in reply.problems)
        raise Refused(reply.code, reply.message, hint=reply.hint, exit_code=reply.exit_code, problems=problems)
    return reply


def _not_allowed(message: str) -> Refused:
    hint = "start a supd of your own (supd run), or name another one's socket with --addr"
    return Refused("C006", message, hint=hint, exit_code=ExitCode.NOT_ALLOWED)


def _absent(address: str, exc: OSError) -> Unavailable:
    return Unavailable("C001", f"no supd answers at {address} ({exc.strerror or exc})", "supd run")


def _hung(address: str, waited_s: float) -> Unavailable:
    message = f"supd at {address} is there but does not answer (waited {waited_s:.0f} s)"
    return Unavailable(
        "C002", message, "look at its log, then end it and start it again (supd run): runs go on meanwhile"
    )


def _other_version(theirs: Greeting) -> Unavailable:
    is_newer = theirs.control_version > CONTROL_VERSION
    message = (
        f"supd {theirs.supd_version} is {'newer' if is_newer else 'older'} than this supctl: "
        f"it speaks control version {theirs.control_version}, this is {CONTROL_VERSION}"
    )
    hint = "use the supctl installed beside it" if is_newer else "restart supd with this version: runs go on meanwhile"
    return Unavailable("C003", message, hint)


def _nonsense(address: str, what: str) -> Unavailable:
    return Unavailable("C005", f"what answers at {address} does not speak supd's protocol: {what}", "supctl version")
