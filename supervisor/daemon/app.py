"""`supd`: the node daemon."""

import argparse
import asyncio
import errno
import fcntl
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NoReturn

import structlog
import uvloop

from protocol.errors import Refused, SupdError
from protocol.exit_code import ExitCode
from supervisor.daemon.control import Control
from supervisor.daemon.init import stay_behind_as_init
from supervisor.daemon.jobs import Jobs
from supervisor.daemon.journal import Journal
from supervisor.daemon.login_session import tell_of_login_session
from supervisor.daemon.members import Members
from supervisor.daemon.runners import Runners
from supervisor.shell.config import Config, load_config
from supervisor.shell.files import write_whole
from supervisor.shell.log_setup import set_up_log
from supervisor.shell.paths import default_control_path
from supervisor.shell.port_holder import port_holder
from supervisor.shell.tls import ensure_credential, server_context
from supervisor.shell.usage import near_option

log = structlog.get_logger()

NEXT_PORTS = 100
"""How many ports above the default one are tried, where nobody asked for it."""


class Stopped(Exception):
    """Somebody asked supd to end."""


async def serve_until_signalled(config: Config) -> int:
    """Run until SIGTERM or SIGINT; returns how many runs go on without us."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return await serve(config, stop)


async def serve(config: Config, stop: asyncio.Event) -> int:
    """Run until `stop` is set. Runs live on, and the next supd finds them; returns how many.

    Raises Refused where supd cannot go on.
    """
    active_runs = 0
    coordinator_file = config.state_dir / "coordinator"
    journal = Journal(config.state_dir / "journal.db")
    try:
        jobs = Jobs(journal, config.node, config.logs_dir, await journal.next_epoch())
        runners = Runners(
            config, journal, coordinator_file, on_gone=jobs.on_runner_gone, on_failed=jobs.on_runner_failed
        )
        jobs.use(runners)
        stored, serving = await journal.runs(), await runners.load()
        members = Members(jobs, config.fleet, config.node)
        control = Control(jobs, journal, config.node)
        async with asyncio.TaskGroup() as group:
            group.create_task(journal.watch(), name="journal")
            group.create_task(runners.run(), name="runners")
            group.create_task(jobs.run(stored, serving), name="jobs")
            await asyncio.sleep(0)  # every run is known before the first runner is heard
            server = await _listen(members, config)
            try:
                host, port = server.sockets[0].getsockname()[:2]
                jobs.peer_host, jobs.peer_port = host, port
                await _publish(coordinator_file, f"{host}:{port}")
                ready = f"{host}:{port}"
                group.create_task(control.run(config.control, lambda: _say_ready(config, ready)), name="control")
                await stop.wait()
                active_runs = len(jobs.active())
                log.info("supd_stopped", active_runs=active_runs)
                raise Stopped
            finally:
                server.close()
                members.close()
    except* Stopped:
        pass
    finally:
        journal.close()
    return active_runs


async def _listen(members: Members, config: Config) -> asyncio.Server:
    host, port = config.peer
    tls = server_context(config.credential)
    last = port + NEXT_PORTS if config.peer_is_default else port
    while True:
        try:
            return await members.listen(host, port, tls)
        except OSError as exc:
            if isinstance(exc, socket.gaierror):
                what, hint = (
                    f"the host {host} is unknown: {exc.strerror}",
                    "set [listen] peer to an address of this node",
                )
                raise Refused("F030", what, hint=hint) from exc
            if port >= last:
                why = os.strerror(exc.errno or 0)
                if exc.errno == errno.EADDRINUSE:
                    why += f" ({await asyncio.to_thread(port_holder, port)})"
                raise Refused(
                    "F030",
                    f"cannot listen on {host}:{port}: {why}",
                    hint="free it, or set [listen] peer in supd.toml (port 0: any that is free)",
                ) from exc
            port += 1


async def _publish(file: Path, address: str) -> None:
    """Runners look there for the coordinator, at every attempt to connect."""
    try:
        await asyncio.to_thread(write_whole, file, f"{address}\n".encode())
    except OSError as exc:
        raise Refused("F035", f"cannot write {file}: {exc.strerror}", hint="see that its disk has room") from exc


def _say_ready(config: Config, peer: str) -> None:
    log.info("supd_ready", node=config.node, control=str(config.control), peer=peer, state=str(config.state_dir))
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:  # sd_notify(3); an abstract socket's name begins with @
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            try:
                notify.connect("\0" + address[1:] if address.startswith("@") else address)
                notify.send(b"READY=1\nSTATUS=ready")
            except OSError as exc:
                log.warning("notify_failed", error=repr(exc))


def prepare(config: Config) -> int:
    """Folders, lock, credential, limits; returns the descriptor that holds the state folder's lock."""
    try:
        return _prepare_folders(config)
    except OSError as exc:
        raise Refused("F034", f"cannot begin in {config.state_dir}: {exc}", hint="see supd.toml, [state]") from exc


def _prepare_folders(config: Config) -> int:
    config.make_private(config.state_dir, "state", "dir")
    usual = config.control == default_control_path(os.environ, os.getuid())
    if usual or not config.control.parent.is_dir():  # a folder the user names may be open: the socket is 0600
        config.make_private(config.control.parent, "listen", "control")
    config.logs_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(config.state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 20, 0).decode(errors="replace").strip() or "?"
        raise Refused(
            "F031",
            f"another supd (pid {holder}) uses {config.state_dir}",
            hint="talk to it with supctl, or give this one its own [state] dir and [listen] control",
        ) from None
    os.pwrite(lock, f"{os.getpid():<20}".encode(), 0)  # for people; who holds it is what counts
    ensure_credential(config.credential)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return lock


def _shed_inheritance() -> None:
    """A parent may have left us with ignored or blocked signals, which every process below would inherit."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGINT}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # A cluster's early warning (USR1, USR2) is for programs: supd serves many jobs and must not end by it.
    # Nor by the end of the terminal it was started in (HUP): runs go on, and somebody has to look after them.
    # A file that may not grow, or a reader that went away, is an error like others, and is told.
    for number in (signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


class _Parser(argparse.ArgumentParser):
    """Tells a wrong command line the way every other error is told."""

    def error(self, message: str) -> NoReturn:
        near = near_option(self, message)
        message = f"{message}; {near}" if near else message
        raise Refused("F001", message, hint=f"{self.prog} --help", exit_code=ExitCode.USAGE)


def command_line() -> argparse.ArgumentParser:
    """The command line of supd."""
    about = "The node daemon of supd. It is spoken to with supctl."
    parser = _Parser(prog="supd", description=about, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"supd {metadata.version('supd')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    about = "run in the foreground; SIGTERM ends it and leaves runs alive"
    run = commands.add_parser("run", help=about, allow_abbrev=False)
    run.add_argument("--config", type=Path, metavar="FILE", help="supd.toml (conf/supd.toml lists every key)")
    run.add_argument("--dev", action="store_true", help="loopback, any free port, state in a new temporary folder")
    return parser


def main() -> None:
    """The command `supd`."""
    try:
        args = command_line().parse_args()
    except Refused as exc:
        sys.exit(_complain(exc))
    _shed_inheritance()
    stay_behind_as_init()
    try:
        status = _run(args)
    except SupdError as exc:
        status = _complain(exc)
    except BaseExceptionGroup as group:
        refusals, others = group.split(SupdError)
        if refusals is None or others is not None:
            traceback.print_exc()
            status = 70
        else:
            status = _complain(next(_leaves(refusals)))
    sys.stderr.flush()
    os._exit(status)  # threads that wait for a disk that hangs are not waited for


def _run(args: argparse.Namespace) -> int:
    """`supd run`; raises SupdError, as it is or in a group."""
    dev_dir = Path(tempfile.mkdtemp(prefix="supd-dev-")) if args.dev else None
    config = load_config(args.config, os.environ, dev_dir=dev_dir)
    set_up_log(config.log_level, config.log_format)
    tell_of_login_session()
    prepare(config)  # its lock is held to our end
    if dev_dir is not None:
        print(f"export SUPD_ADDR={config.control}", file=sys.stderr, flush=True)  # noqa: T201  # for the user
    active_runs = asyncio.Runner(loop_factory=uvloop.new_event_loop).run(serve_until_signalled(config))
    if dev_dir is not None and not active_runs:
        shutil.rmtree(dev_dir, ignore_errors=True)
    return 0


def _leaves(group: BaseExceptionGroup[SupdError]) -> Iterator[SupdError]:
    for exc in group.exceptions:
        if isinstance(exc, BaseExceptionGroup):
            yield from _leaves(exc)
        else:
            yield exc


def _complain(exc: SupdError) -> int:
    hint = f"\n→ {exc.hint}" if exc.hint else ""
    what = exc if exc.problems else f"supd: error[{exc.code}]: {exc}"  # problems of a file have codes of their own
    sys.stderr.write(f"{what}{hint}\n")
    return exc.exit_code


if __name__ == "__main__":
    main()
