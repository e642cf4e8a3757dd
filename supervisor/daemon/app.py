"""`supd`: the node daemon."""

import asyncio
import contextlib
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
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import uvloop

from protocol.errors import Refused, SupdError
from protocol.messages.fleet import FetchLogs, FetchRank, Visit
from protocol.text import host_port
from supervisor.daemon import fleet_key
from supervisor.daemon.adoption import known_runners
from supervisor.daemon.control import Control
from supervisor.daemon.disk_room import DiskRoom
from supervisor.daemon.door import Door
from supervisor.daemon.hosting import Hosting
from supervisor.daemon.init import stay_behind_as_init
from supervisor.daemon.journal import Journal
from supervisor.daemon.leadership import OperatorsWord, Word
from supervisor.daemon.local_files import LocalFiles
from supervisor.daemon.login_session import tell_of_login_session
from supervisor.daemon.moving import Others
from supervisor.daemon.node import Node
from supervisor.daemon.own_folder import see_that_it_is_our_own
from supervisor.daemon.probe import Prober
from supervisor.daemon.role import Deposed, Role
from supervisor.daemon.sent import ENDS, TOLD, Sent
from supervisor.shell.config import Config, load_config
from supervisor.shell.dial import Dialer
from supervisor.shell.log_setup import set_up_log
from supervisor.shell.paths import default_control_path
from supervisor.shell.port_holder import port_holder
from supervisor.shell.tls import client_context, ensure_credential, server_context
from supervisor.shell.tls_server import TlsServer

if TYPE_CHECKING:
    from argparse import Namespace

log = structlog.get_logger()

NO_WORD = Word()

DECIDE_S = 1.0
"""How long clients wait at the start until it is known which node hosts the coordinator; later ones are told so."""

FROM_HERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where a supd that listens on all interfaces is found from its own machine."""

TELL_S = 0.5
"""How long a supd that was told to end takes to tell the coordinator: a run may have that for a notice."""

NEXT_PORTS = 100
"""How many ports above the default one are tried, where nobody asked for it."""


class Stopped(Exception):
    """Somebody asked supd to end."""


async def serve_until_signalled(config: Config, word: Word) -> int:
    """Run until SIGTERM or SIGINT; returns how many runs go on without us."""
    stop, sent = asyncio.Event(), Sent()

    def end(number: signal.Signals) -> None:
        sent.add(number)
        stop.set()

    for numbers, heed in ((TOLD, sent.add), (ENDS, end)):
        for number in numbers:
            asyncio.get_running_loop().add_signal_handler(number, heed, number)
    return await serve(config, stop, word, sent)


Company = Callable[[Role, Dialer], Coroutine[None, None, None]]
"""What else is to run in this process, for as long as supd does."""


async def serve(
    config: Config,
    stop: asyncio.Event,
    word: Word = NO_WORD,
    sent: Sent | None = None,
    company: Company | None = None,
) -> int:
    """Run until `stop` is set. Runs live on, and the next supd finds them; returns how many. `sent` are signals that
    this process is sent: nodes are told of them, also at the end. Whatever `company` raises ends it.

    Raises Refused where supd cannot go on.
    """
    sent = sent or Sent()
    while (active_runs := await _serve(config, stop, word, sent, company)) is None:
        word = NO_WORD  # the coordinator is elsewhere since: begin anew, as one that joins it
    return active_runs


async def _serve(config: Config, stop: asyncio.Event, word: Word, sent: Sent, company: Company | None) -> int | None:
    """As `serve`; None once this node has hosted, and another one does so since."""
    active_runs: int | None = 0
    role: Role | None = None

    async def tell() -> None:
        if role is not None:
            await role.heed_signals()

    journal = Journal(config.state_dir / "journal.db")
    try:
        await see_that_it_is_our_own(config.state_dir, journal, is_moving=word.hosts)
        start = await journal.next_incarnation()
        node = Node(config, journal, await known_runners(config.state_dir, journal))
        hosting = Hosting(config, told=word.hosts or await journal.is_told_to_host())
        door = Door(config.fleet, config.node)
        async with asyncio.TaskGroup() as group:
            group.create_task(_stopped(stop, tell), name="stop")
            group.create_task(journal.watch(), name="journal")
            group.create_task(node.run(), name="node")
            sent.tell(node.on_signalled)
            group.create_task(DiskRoom(config, node.runners.serves).run(), name="disk-room")
            if config.join:
                await hosting.ensure_credential()
            dialer = Dialer(client_context(config.credential), hosting.local_address)
            others = Others(config, Prober(dialer, config.fleet), node)
            leadership = OperatorsWord(config, journal, hosting, others, word)
            role = Role(config, leadership, node, hosting, door, dialer, start)
            if company is not None:
                group.create_task(company(role, dialer), name="company")
            control = Control(role, dialer, config)
            files = LocalFiles(config.node, config.logs_dir)
            door.handlers[Visit] = control.visit
            door.handlers[FetchLogs], door.handlers[FetchRank] = files.take_logs, files.take_rank
            group.create_task(files.run(), name="files")
            server = await _listen(door, config)
            try:
                host, port = server.sockets[0].getsockname()[:2]
                group.create_task(role.run(FROM_HERE.get(config.peer[0], host), port), name="role")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(DECIDE_S if config.join and not word.hosts else None):
                        await role.is_taken.wait()
                await control.run(config.control, lambda: _say_ready(config, host_port(host, port)))
            finally:
                active_runs = role.active_runs()
                server.close()
                door.close()
    except* Stopped:
        log.info("supd_stopped", active_runs=active_runs)
    except* Deposed:
        active_runs = None
    finally:
        journal.close()
    return active_runs


async def _stopped(stop: asyncio.Event, tell: Callable[[], Awaitable[None]]) -> None:
    await stop.wait()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(TELL_S):
            await tell()
    raise Stopped


async def _listen(door: Door, config: Config) -> TlsServer:
    host, port = config.peer
    tls = server_context(config.credential)
    last = port + NEXT_PORTS if config.peer_is_default else port
    while True:
        try:
            return await door.listen(host, port, tls)
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
                    f"cannot listen on {host_port(host or '*', port)}: {why}",
                    hint="free it, or set [listen] peer in supd.toml (port 0: any that is free)",
                ) from exc
            port += 1


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
    if not config.join or config.credential.exists():  # else it depends on which node hosts
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


def main() -> None:
    """The command `supd`."""
    from supervisor.daemon.command_line import read_command_line  # only here: suprun has another one

    try:
        args = read_command_line()
    except Refused as exc:
        sys.exit(_complain(exc))
    _shed_inheritance()
    stay_behind_as_init()
    try:
        status = _run(args) if args.command == "run" else _fleet_key(args)
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


def _run(args: "Namespace") -> int:
    """`supd run`; raises SupdError, as it is or in a group."""
    word = Word(args.coordinator, args.old_is_dead)
    dev_dir = Path(tempfile.mkdtemp(prefix="supd-dev-")) if args.dev else None
    config = load_config(args.config, os.environ, dev_dir=dev_dir)
    set_up_log(config.log_level, config.log_format)
    tell_of_login_session()
    prepare(config)  # its lock is held to our end
    if dev_dir is not None:
        print(f"export SUPD_ADDR={config.control}", file=sys.stderr, flush=True)  # noqa: T201  # for the user
    active_runs = asyncio.Runner(loop_factory=uvloop.new_event_loop).run(serve_until_signalled(config, word))
    if dev_dir is not None and not active_runs:
        shutil.rmtree(dev_dir, ignore_errors=True)
    return 0


def _fleet_key(args: "Namespace") -> int:
    """`supd fleet key new` and `show`; raises SupdError."""
    config = load_config(args.config, os.environ)
    sys.stdout.write((fleet_key.new if args.action == "new" else fleet_key.show)(config))
    sys.stdout.flush()
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
