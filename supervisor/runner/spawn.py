"""Starting a worker, learning how it ended, and saying in plain words why it could not be started.

A worker gets a session of its own, a parent-death signal, default signals, two pipes and nothing else: nothing of the
precedence that its runner has, either.
Why this takes `preexec_fn`, and what the child may do in it: docs/decisions/003.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator

from protocol.dataclass import dataclass
from supervisor.shell.lease_page import LeasePage
from supervisor.shell.precedence import Precedence, give_back
from supervisor.shell.program import NOT_EXECUTABLE, NoProgram, find_program

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PIPE_BYTES = 1 << 20  # the most that an ordinary user may ask for: fs.pipe-max-size in pipe(7)
_SHEBANG_BYTES = 256  # BINPRM_BUF_SIZE: all that the kernel reads of a first line
_STRING_BYTES_MAX = 32 * resource.getpagesize()  # MAX_ARG_STRLEN in execve(2)
_LIMITS = {
    "nofile": resource.RLIMIT_NOFILE,
    "core": resource.RLIMIT_CORE,
    "memlock": resource.RLIMIT_MEMLOCK,
    "stack": resource.RLIMIT_STACK,
}
_NODES_ERRORS = frozenset(
    {
        errno.EAGAIN,
        errno.ENOMEM,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EIO,
        errno.EREMOTEIO,
        errno.ESTALE,
        errno.ENODEV,
        errno.ENXIO,
        errno.ENOTCONN,
        errno.ETIMEDOUT,
        errno.EHOSTDOWN,
    }
)
"""A lack of processes, memory, descriptors, room; a disk, or the server of one, that does not work."""

_SIGNALS = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})

# Looked up before any fork: in the child between fork and exec only the bare call is left.
_prctl = ctypes.CDLL(None).prctl
_prctl.argtypes = [ctypes.c_int, ctypes.c_ulong]


@dataclass(frozen=True)
class WorkerCommand:
    """What to start. `limits` are soft limits by name (nofile, core, memlock, stack; -1: unlimited).

    `precedence` is what the runner had first. Where the `lease` is over there is no exec.
    """

    argv: list[bytes | str]
    env: dict[bytes, bytes]
    cwd: bytes | str
    limits: dict[str, int]
    umask: int
    precedence: Precedence | None = None
    lease: LeasePage | None = None
    cpus: frozenset[int] | None = None  # that it is bound to; None: those of its runner


@dataclass(frozen=True)
class Spawned:
    """A worker that runs. Who holds this closes its pipes, which may outlive it; `reap` closes `pidfd`."""

    pid: int
    pidfd: int  # readable when it has ended
    stdout_fd: int  # both non-blocking
    stderr_fd: int
    process: subprocess.Popen[bytes]


@dataclass(frozen=True)
class ExitStatus:
    """How a process ended: exactly one of `code` and `signal` is set."""

    code: int | None = None
    signal: int | None = None
    core_dumped: bool = False


class SpawnError(Exception):
    """A worker could not be started: `path` is what could not be executed, opened or entered.

    `is_nodes`: another node might have done better, for this one lacks something that no job brings along.
    """

    def __init__(self, path: bytes | str, reason: str, cause: OSError | None = None) -> None:
        self.path = os.fsdecode(path)
        self.reason = reason
        self.is_nodes = cause is not None and cause.errno in _NODES_ERRORS
        super().__init__(f"{self.path}: {reason}")


def spawn(command: WorkerCommand) -> Spawned:
    """Start a worker; raises SpawnError. Blocks for about 2 ms, and for as long as the disk of the program hangs.

    Only from a thread that outlives the worker: the parent-death signal is sent when the *thread* that forked ends
    (prctl(2)).
    """
    _check_cwd(command.cwd)
    program = _find_program(command)
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as childs_ends:
        try:
            stdout_fd, child_stdout = _pipe(undo, childs_ends)
            stderr_fd, child_stderr = _pipe(undo, childs_ends)
            process = subprocess.Popen(
                command.argv,
                executable=program,
                stdin=subprocess.DEVNULL,
                stdout=child_stdout,
                stderr=child_stderr,
                cwd=command.cwd,
                env=command.env,
                umask=command.umask,
                start_new_session=True,
                preexec_fn=_preparation(command),
            )
            pidfd = pidfd_of(process)
        except OSError as exc:
            raise _explained(exc, program, command) from exc
        except (ValueError, subprocess.SubprocessError) as exc:  # a NUL byte, a nameless variable
            raise SpawnError(program, str(exc)) from exc
        undo.pop_all()
    return Spawned(process.pid, pidfd, stdout_fd, stderr_fd, process)


def read_exit(pidfd: int) -> ExitStatus | None:
    """How a child ended, without reaping it: its pid stays its own until `reap`.

    None: it has not ended, or a debugger that is attached to it has not let go of it.
    """
    info = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    if info is None:
        return None
    if info.si_code == os.CLD_EXITED:
        return ExitStatus(code=info.si_status)
    return ExitStatus(signal=info.si_status, core_dumped=info.si_code == os.CLD_DUMPED)


def reap(spawned: Spawned) -> None:
    """Let go of a worker that has ended: its pid may be used again, and `pidfd` is closed."""
    spawned.process.wait()
    os.close(spawned.pidfd)


def _pipe(undo: contextlib.ExitStack, childs_ends: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe that our side reads without blocking, as large as we may have it."""
    ours, theirs = os.pipe()
    undo.callback(os.close, ours)
    childs_ends.callback(os.close, theirs)
    os.set_blocking(ours, False)
    with contextlib.suppress(OSError):  # an ordinary user's pipes are small when there are many (pipe(7))
        fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return ours, theirs


def pidfd_of(process: subprocess.Popen[bytes]) -> int:
    """Of a child that nobody has reaped. Raises OSError where there can be none; the child has ended then."""
    try:
        return os.pidfd_open(process.pid)
    except OSError:
        process.kill()  # one that nobody can watch is not to run
        process.wait()
        raise


def _preparation(command: WorkerCommand) -> Callable[[], None]:
    """What the child does between fork and exec. Everything is computed here, in the parent."""
    parent, precedence, lease, cpus = os.getpid(), command.precedence, command.lease, command.cpus
    ignored = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_IGN]  # exec keeps only these
    wanted = [
        (_LIMITS[name], _clamped(value, resource.getrlimit(_LIMITS[name])[1])) for name, value in command.limits.items()
    ]

    def prepare() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)  # the runner ended before the line above: nobody would notice
        for kind, pair in wanted:
            resource.setrlimit(kind, pair)
        for number in ignored:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if precedence is not None:
            give_back(precedence)
        if cpus is not None:
            os.sched_setaffinity(0, cpus)
        if lease is not None and lease.is_over:
            os.kill(os.getpid(), signal.SIGKILL)  # we were stopped in the middle: the guard may have looked already

    return prepare


def _clamped(soft: int, hard: int) -> tuple[int, int]:
    """A soft limit with the hard one it may not pass; RLIM_INFINITY is -1 in both places."""
    if hard == resource.RLIM_INFINITY:
        return soft, hard
    return (hard if soft == resource.RLIM_INFINITY else min(soft, hard)), hard


# --- why not -----------------------------------------------------------------------------------------------------


def _check_cwd(cwd: bytes | str) -> None:
    try:
        is_folder = stat.S_ISDIR(os.stat(cwd).st_mode)
    except OSError as exc:
        raise SpawnError(cwd, f"working directory: {_plain(exc)}", exc) from exc
    if not is_folder:
        raise SpawnError(cwd, "working directory: not a directory")
    if not os.access(cwd, os.X_OK):
        raise SpawnError(cwd, "working directory: permission denied")


def _find_program(command: WorkerCommand) -> bytes:
    """argv[0] as execve(2) is to get it."""
    name = os.fsencode(command.argv[0]) if command.argv else b""
    try:
        return find_program(name, command.env.get(b"PATH", os.fsencode(os.defpath)), os.fsencode(command.cwd))
    except NoProgram as exc:
        raise SpawnError(exc.path, exc.reason) from exc


def _place(path: bytes, cwd: bytes | str) -> bytes:
    return os.path.join(os.fsencode(cwd), path)


def _explained(exc: OSError, program: bytes, command: WorkerCommand) -> SpawnError:
    """The error of a failed spawn, told of the path that it is about."""
    place = _place(program, command.cwd)
    match exc.errno:
        case errno.EMFILE:
            return SpawnError(place, f"too many open files in the runner (limit {_open_files_limit()})", exc)
        case errno.ENFILE:
            return SpawnError(place, "too many open files on this machine", exc)
        case errno.EAGAIN:
            why = "no further process is allowed: the limit of processes or of pids is reached"
            return SpawnError(place, why, exc)
        case errno.ENOMEM:
            return SpawnError(place, "not enough memory to start it", exc)
        case errno.E2BIG:
            return SpawnError(place, _too_large(command))
        case errno.ENOEXEC:
            return SpawnError(place, "not a program for this machine, and no script: its first line is no #! line")
        case _:
            return _blamed(exc, place, command.cwd)


def _blamed(exc: OSError, place: bytes, cwd: bytes | str) -> SpawnError:
    """For errors such as ENOENT and EACCES, which do not say whose they are: program, interpreter or folder."""
    if not os.path.exists(place):
        _check_cwd(cwd)  # it may have gone since we looked
        return SpawnError(place, f"program: {_plain(exc)}", exc)
    for interpreter in _interpreters(place, cwd):
        if not os.path.isfile(_place(interpreter, cwd)):
            hint = ": the script has Windows line ends" if interpreter.endswith(b"\r") else ""
            return SpawnError(interpreter.rstrip(b"\r"), f"interpreter of {os.fsdecode(place)} not found{hint}")
        if not os.access(_place(interpreter, cwd), os.X_OK):
            return SpawnError(interpreter, f"interpreter of {os.fsdecode(place)} is not executable")
    if os.path.isdir(place):
        return SpawnError(place, "program: is a directory")
    if exc.errno == errno.EACCES and not os.access(place, os.X_OK):
        return SpawnError(place, NOT_EXECUTABLE)
    if exc.errno == errno.EACCES:
        return SpawnError(place, "program may not be executed here (its file system is mounted noexec?)")
    if exc.errno == errno.ENOENT:
        return SpawnError(place, "the loader that this program names is not on this machine")
    return SpawnError(place, f"program: {_plain(exc)}", exc)


def _interpreters(place: bytes, cwd: bytes | str) -> Iterator[bytes]:
    """The program's `#!` interpreter, that one's own, and so on; execve(2) follows at most four."""
    for _ in range(4):
        try:
            with open(place, "rb") as file:
                line = file.read(_SHEBANG_BYTES).partition(b"\n")[0]
        except OSError:
            return
        # The kernel splits at blanks and tabs only: a carriage return belongs to the name.
        name = line[2:].replace(b"\t", b" ").strip(b" ").partition(b" ")[0]
        if not line.startswith(b"#!") or not name:
            return
        yield name
        place = _place(name, cwd)


def _plain(exc: OSError) -> str:
    return {
        errno.ENOENT: "not found",
        errno.ENOTDIR: "not found: a part of its path is a file",
        errno.EACCES: "permission denied",
        errno.ELOOP: "its symbolic links lead in a circle",
        errno.ETXTBSY: "somebody is still writing to it",
    }.get(exc.errno or 0, (exc.strerror or str(exc)).lower())


def _open_files_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _too_large(command: WorkerCommand) -> str:
    """What of a command the kernel did not take: one string of it, or the sum of all (execve(2))."""
    sizes = {f"argument {place}": len(os.fsencode(word)) + 1 for place, word in enumerate(command.argv)}
    sizes |= {f"variable {os.fsdecode(name)}": len(name) + len(value) + 2 for name, value in command.env.items()}
    largest = max(sizes, key=lambda what: sizes[what])
    if sizes[largest] > _STRING_BYTES_MAX:
        return f"{largest} has {sizes[largest]} bytes, and no single one may have over {_STRING_BYTES_MAX}"
    return f"arguments and environment are too large ({sum(sizes.values())} bytes)"
