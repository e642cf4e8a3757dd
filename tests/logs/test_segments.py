"""supervisor/logs/segments.py: real pipes, real files, real processes."""

import asyncio
import fcntl
import os
import re
import resource
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from supervisor.logs.paths import make_generation_dir, stream_path
from supervisor.logs.segments import QUEUE_BYTES_MAX, LogWriter
from supervisor.logs.times import MARK_EVERY_S, Times
from supervisor.shell.clock import wall_s

SLACK_BYTES = 1 << 20
"""What may be on its way besides the queue: a pipe, and what is read at once."""


def rank_pipe(
    writer: LogWriter,
    rank: int = 0,
    stream: str = "out",
    *,
    generation: int = 0,
    on_first_byte: Callable[[], None] | None = None,
    on_data: Callable[[bytes], None] | None = None,
) -> int:
    """Open a rank's stream; the write end of its pipe."""
    read_end, write_end = os.pipe()
    writer.open(generation, rank, stream, read_end, on_first_byte, on_data)
    return write_end


def write_all(fd: int, data: bytes) -> None:
    """Write like a worker: blocking, then gone."""
    with open(fd, "wb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) or 0 :]


def start(command: list[str], stdin: int, stdout: int, stderr: int | None) -> subprocess.Popen[bytes]:
    """A worker in a session of its own that holds these ends alone."""
    worker = subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True)
    for fd in (stdin, stdout, stderr):
        if fd is not None and fd >= 0:
            os.close(fd)
    return worker


# --- what is written ---------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=20))
async def test_bytes_reach_the_file_as_written_however_they_come(chunks: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer = LogWriter(Path(folder))
        pipe = rank_pipe(writer)
        for chunk in chunks:
            os.write(pipe, chunk)
            await asyncio.sleep(0)
        os.close(pipe)
        assert await writer.finish(0)
        writer.close()
        assert stream_path(Path(folder), 0, 0, "out").read_bytes() == b"".join(chunks)


async def test_a_line_of_a_mebibyte_without_newline_and_any_binary_arrive_whole(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    outputs = {("out", 0): b"x" * (1 << 20), ("err", 0): bytes(range(256)) * 4096, ("out", 1): b"\0\r\n\xff"}
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        for (stream, rank), output in outputs.items():
            tasks.create_task(asyncio.to_thread(write_all, rank_pipe(writer, rank, stream), output))
    assert await writer.finish(0)
    writer.close()
    assert {key: stream_path(tmp_path, 0, key[1], key[0]).read_bytes() for key in outputs} == outputs


async def test_each_line_of_16_ranks_that_end_at_once_is_there_once(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    workers = []
    for rank in range(16):
        pipe = rank_pipe(writer, rank)
        workers.append(start(["seq", "-f", f"rank {rank} line %05.0f", "10000"], subprocess.DEVNULL, pipe, None))
    for rank, worker in enumerate(workers):
        assert await asyncio.to_thread(worker.wait) == 0
        await writer.drain(rank)
    assert await writer.finish(0)
    writer.close()
    for rank in range(16):
        expected = "".join(f"rank {rank} line {number:05d}\n" for number in range(1, 10001))
        assert stream_path(tmp_path, 0, rank, "out").read_text() == expected


async def test_a_rank_is_heard_beside_one_that_floods(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    flooded = asyncio.Event()
    heard = asyncio.Event()
    flood = start(["yes"], subprocess.DEVNULL, rank_pipe(writer, 0, on_first_byte=flooded.set), None)
    quiet = rank_pipe(writer, 1, on_first_byte=heard.set)
    try:
        async with asyncio.timeout(10):
            await flooded.wait()
            os.write(quiet, b"hello\n")
            await heard.wait()
    finally:
        flood.kill()
        await asyncio.to_thread(flood.wait)
        os.close(quiet)
    assert await writer.finish(0)
    writer.close()
    assert stream_path(tmp_path, 0, 1, "out").read_bytes() == b"hello\n"


async def test_descriptors_beyond_1023_work(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    try:
        writer = LogWriter(tmp_path)
        read_end, write_end = os.pipe()
        high = fcntl.fcntl(read_end, fcntl.F_DUPFD_CLOEXEC, 1500)
        os.close(read_end)
        started = asyncio.Event()
        writer.open(0, 0, "out", high, started.set)
        os.write(write_end, b"hello\n")
        async with asyncio.timeout(10):
            await started.wait()
        os.close(write_end)
        assert await writer.finish(0)
        writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert stream_path(tmp_path, 0, 0, "out").read_bytes() == b"hello\n"


async def test_the_first_byte_is_told_once_and_nothing_is_no_byte(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    told: list[int] = []
    silent = rank_pipe(writer, 0, on_first_byte=lambda: told.append(0))
    loud = rank_pipe(writer, 1, on_first_byte=lambda: told.append(1))
    for _ in range(3):
        os.write(loud, b".")
        await writer.drain(1)
    os.close(silent)
    os.close(loud)
    assert await writer.finish(0)
    writer.close()
    assert told == [1]


async def test_who_taps_a_stream_is_given_every_byte_in_order(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    tapped = bytearray()
    output = b"".join(b"line %d\n" % number for number in range(50_000))
    async with asyncio.timeout(20):
        await asyncio.to_thread(write_all, rank_pipe(writer, on_data=tapped.extend), output)
    assert await writer.finish(0)
    writer.close()
    assert tapped == output


async def test_each_byte_has_the_time_at_which_it_was_read(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    pipe = rank_pipe(writer)
    written: list[tuple[float, float]] = []
    for _ in range(3):
        before_s = wall_s()
        os.write(pipe, b"a line of its own\n")
        await writer.drain(0)
        written.append((before_s, wall_s()))
        await asyncio.sleep(MARK_EVERY_S)  # what comes sooner shares its time
    os.close(pipe)
    assert await writer.finish(0)
    writer.close()
    path = stream_path(tmp_path, 0, 0, "out")
    with Times(path) as times:
        marks = times.between(0, path.stat().st_size)
    assert [offset for offset, _ in marks] == [0, 18, 36]
    for (_, read_s), (before_s, after_s) in zip(marks, written, strict=True):
        assert before_s - 1e-6 <= read_s <= after_s + 1e-6


# --- the end of ranks and generations ----------------------------------------------------------------------------


async def test_a_grandchild_that_holds_the_pipe_delays_nobody_and_can_still_write(tmp_path: Path) -> None:
    """H18. That the exit status itself is seen and acted on is the runner's part."""
    writer = LogWriter(tmp_path)
    pipe = rank_pipe(writer, 3, "err")
    orders, order = os.pipe()
    reports, report = os.pipe()
    grandchild = "(read order <&3; echo from the grandchild >&2; echo done; read order <&3)"
    worker = start(["sh", "-c", f"exec 3<&0; {grandchild} & echo last words >&2; exit 3"], orders, report, pipe)
    try:
        assert await asyncio.to_thread(worker.wait) == 3
        async with asyncio.timeout(5):
            await writer.drain(3)
        assert writer.tail(3, "err") == (b"last words",)
        os.write(order, b"\n")
        assert await asyncio.to_thread(os.read, reports, 100) == b"done\n"
        async with asyncio.timeout(5):
            assert await writer.finish(0)
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        os.close(order)
        os.close(reports)
    writer.close()
    assert stream_path(tmp_path, 0, 3, "err").read_bytes() == b"last words\nfrom the grandchild\n"


async def test_the_last_words_are_known_after_drain_and_kept_until_the_next_generation(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    pipe = rank_pipe(writer, 0, "err")
    os.write(pipe, b"".join(b"line %d\n" % number for number in range(100)))
    await writer.drain(0)
    assert writer.tail(0, "err") == tuple(b"line %d" % number for number in range(80, 100))
    writer.keep_more(0, "err")
    writer.keep_more(7, "err")
    os.write(pipe, b"".join(b"line %d\n" % number for number in range(100, 300)) + b"Killed")
    await writer.drain(0)
    os.close(pipe)
    expected = (*(b"line %d" % number for number in range(101, 300)), b"Killed")
    assert await writer.finish(0)
    assert writer.tail(0, "err") == expected
    os.close(rank_pipe(writer, 0, "err", generation=1))
    assert writer.tail(0, "err") == ()
    assert writer.tail(7, "err") == ()
    assert await writer.finish(1)
    writer.close()
    assert os.readlink(tmp_path / "latest") == "gen-0001"


async def test_closing_without_finish_writes_what_was_read_and_frees_every_descriptor(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    writer = LogWriter(tmp_path)
    pipe = rank_pipe(writer)
    os.write(pipe, b"hello\n")
    await writer.drain(0)
    writer.close()
    os.close(pipe)
    assert stream_path(tmp_path, 0, 0, "out").read_bytes() == b"hello\n"
    assert len(os.listdir("/proc/self/fd")) == before
    assert not any(thread.name == "log-disk" for thread in threading.enumerate())


# --- disks -------------------------------------------------------------------------------------------------------


async def test_a_slow_disk_slows_the_workers_and_costs_nothing(tmp_path: Path) -> None:
    make_generation_dir(tmp_path, 0)
    disk = stream_path(tmp_path, 0, 0, "out")
    os.mkfifo(disk)  # a "file" that takes only what the test takes out of it
    writer = LogWriter(tmp_path)
    pipe = rank_pipe(writer)
    block = bytes(range(256)) * 256
    written = 0

    def work() -> None:
        nonlocal written
        with open(pipe, "wb", buffering=0) as file:
            for _ in range(20 * 16):  # 20 MiB
                file.write(block)
                written += len(block)

    def take(fd: int) -> int:
        taken = 0
        while data := os.read(fd, len(block)):
            taken += len(data)
            assert written - taken < QUEUE_BYTES_MAX + SLACK_BYTES
        return taken

    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        working = tasks.create_task(asyncio.to_thread(work))
        taking = tasks.create_task(asyncio.to_thread(take, await asyncio.to_thread(os.open, disk, os.O_RDONLY)))
        await working
        assert await writer.finish(0)
    writer.close()
    assert taking.result() == written


async def test_a_disk_that_hangs_costs_output_and_does_not_hold_up_training(tmp_path: Path) -> None:
    make_generation_dir(tmp_path, 0)
    disk = stream_path(tmp_path, 0, 0, "out")
    os.mkfifo(disk)  # until somebody reads it, opening it hangs
    writer = LogWriter(tmp_path, hung_after_s=0.1, finish_within_s=0.1)
    output = b"0123456789abcde\n" * (20 << 16)  # 20 MiB
    healthy = rank_pipe(writer, 1, generation=1)
    with capture_logs() as logs:
        async with asyncio.timeout(20):
            await asyncio.to_thread(write_all, rank_pipe(writer), output)
        assert not await writer.finish(0)
    os.write(healthy, b"still read\n")
    await writer.drain(1)
    assert writer.tail(1, "out") == (b"still read",)
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(asyncio.to_thread(disk.read_bytes))
    os.close(healthy)
    assert await writer.finish(1)
    writer.close()
    notice = rb"\[supd: (\d+) bytes not written until [0-9TZ:.-]{24}: the disk hung\]\n"
    found = re.fullmatch(rb"((?s:.*)\n)" + notice, reading.result())
    assert found is not None
    assert output.startswith(found[1])
    assert len(found[1]) + int(found[2]) == len(output)
    begin, end = logs
    assert (begin["event"], begin["log_level"], begin["error"]) == ("output_lost", "warning", "the disk hung")
    assert (end["event"], end["path"], end["bytes"]) == ("output_missing", str(disk), int(found[2]))
    assert QUEUE_BYTES_MAX <= len(found[1]) < QUEUE_BYTES_MAX + SLACK_BYTES
    assert stream_path(tmp_path, 1, 1, "out").read_bytes().endswith(b": the disk hung]\n")
