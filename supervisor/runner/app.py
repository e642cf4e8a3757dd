"""`python -m supervisor.runner.app`: a runner, started by its guard; ready until it gets a run on standard input."""

import asyncio
import functools
import os
import resource
import signal
import ssl
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import structlog
import uvloop

from protocol.framing import FrameDecoder
from protocol.messages.runner import TakeOn, decode_take_on
from supervisor.runner.guard import become_subreaper
from supervisor.runner.runner import Runner
from supervisor.shell.guarding import Tie, pairs
from supervisor.shell.lease_page import LeasePage
from supervisor.shell.log_setup import set_up_log
from supervisor.shell.log_thread import LogThread
from supervisor.shell.precedence import take_precedence

READ_BYTES = 64 * 1024

SWITCH_S = 0.0005
"""How long another thread of ours (the one that writes the logs, say) may keep the loop waiting each time that it has
asked the kernel for something: with many ranks that is hundreds of times a second, and Python's own 5 ms add up."""

THREADS_MAX = 16
"""For what waits for disks and drivers. Of each kind one may hang, and there are fewer kinds: one is always free."""

LOG_PATIENCE_S = 1.0
"""How long the end waits for the last lines of its own log."""

IGNORED = (
    *(signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM),
    *(signal.SIGPIPE, signal.SIGXFSZ),
)
"""A runner belongs to no terminal; what is meant for the program reaches it by supctl or by pid. A reader that went
away, and a file that may not grow, are errors like others."""


async def take_on() -> TakeOn | None:
    """The run to serve, once supd says so; None where supd ended without a word."""
    loop = asyncio.get_running_loop()
    decoder, readable = FrameDecoder(), asyncio.Event()
    os.set_blocking(0, False)
    loop.add_reader(0, readable.set)
    try:
        while True:
            await readable.wait()
            readable.clear()
            data = os.read(0, READ_BYTES)
            if not data:
                return None
            for frame in decoder.feed(data):
                return decode_take_on(frame)
    finally:
        loop.remove_reader(0)


async def warm_up() -> None:
    """Do now, while nobody waits, what takes long the first time: OpenSSL gets ready, a thread is there."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS_MAX, "slow"))
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    await asyncio.to_thread(int)


async def serve(runner_of: Callable[[TakeOn], Runner]) -> None:
    """Wait for a run and serve it to its end."""
    await warm_up()
    task = await take_on()
    if task is None:
        return
    structlog.contextvars.bind_contextvars(run=task.run, node=task.node)
    await runner_of(task).run()


def main(arguments: list[str]) -> NoReturn:
    """Run until the run is over; `arguments` are the options."""
    options = pairs(arguments)
    tie = Tie.of(options)
    lock_fd, page_fd, poke_fd = (int(options[name]) for name in ("--lock-fd", "--page-fd", "--poke-fd"))
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    become_subreaper()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # two pipes and a pidfd a rank; workers get the job's
    for fd in (lock_fd, page_fd, poke_fd, *(() if tie is None else (tie.fd,))):
        os.set_inheritable(fd, False)
    precedence = take_precedence()  # before there is any thread
    lines = LogThread(sys.stderr)
    set_up_log(options.get("--log-level", "info"), "json", lines)
    sys.setswitchinterval(SWITCH_S)
    runner_of = functools.partial(
        Runner,
        lock_fd=lock_fd,
        cgroup=None if options["--cgroup"] == "-" else options["--cgroup"],
        guard_pid=int(options["--guard"]),
        page=LeasePage(page_fd, poke_fd),
        precedence=precedence,
        tie=tie,
    )
    status = 0
    try:
        asyncio.Runner(loop_factory=uvloop.new_event_loop).run(serve(runner_of))
    except BaseException:
        structlog.get_logger().exception("runner_crashed")
        status = 70
    lines.close(LOG_PATIENCE_S)
    os._exit(status)  # whatever a disk does to its threads: the guard and the coordinator wait for its end


if __name__ == "__main__":
    main(sys.argv[1:])
