"""`python -m supervisor.runner.app`: a runner, started by its guard; ready until it gets a run on standard input."""

import argparse
import asyncio
import os
import resource
import signal
import ssl

import structlog
import uvloop

from protocol.framing import FrameDecoder
from protocol.messages.runner import TakeOn, decode_take_on
from supervisor.runner.guard import become_subreaper
from supervisor.runner.runner import Runner
from supervisor.shell.log_setup import set_up_log

READ_BYTES = 64 * 1024
IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE, signal.SIGALRM)
"""A runner belongs to no terminal; what is meant for the program reaches it by supctl or by pid."""


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
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    await asyncio.to_thread(int)


async def serve(lock_fd: int, cgroup: str | None, guard_pid: int) -> None:
    """Wait for a run and serve it to its end."""
    await warm_up()
    task = await take_on()
    if task is None:
        return
    structlog.contextvars.bind_contextvars(run=task.run, node=task.node)
    await Runner(task, lock_fd=lock_fd, cgroup=cgroup, guard_pid=guard_pid).run()


def main() -> None:
    """Run until the run is over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lock-fd", type=int, required=True)
    parser.add_argument("--cgroup", required=True)
    parser.add_argument("--guard", type=int, required=True)
    parser.add_argument("--log-level", default="info")
    args = parser.parse_args()
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    become_subreaper()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # two pipes and a pidfd a rank; workers get the job's
    os.set_inheritable(args.lock_fd, False)
    set_up_log(args.log_level, "json")
    cgroup = None if args.cgroup == "-" else args.cgroup
    status = 0
    try:
        asyncio.Runner(loop_factory=uvloop.new_event_loop).run(serve(args.lock_fd, cgroup, args.guard))
    except BaseException:
        structlog.get_logger().exception("runner_crashed")
        status = 70
    os._exit(status)  # whatever a disk does to its threads: the guard and the coordinator wait for its end


if __name__ == "__main__":
    main()
