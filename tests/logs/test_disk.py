"""supervisor/logs/disk.py"""

import threading
from pathlib import Path

import structlog

from supervisor.logs.disk import DiskThread
from supervisor.logs.log_file import LogFile
from supervisor.logs.times import Times


def test_everything_queued_for_a_file_is_written_in_order_before_it_is_closed(tmp_path: Path) -> None:
    thread = DiskThread(1 << 30, lambda: None)
    files = [LogFile(tmp_path / f"rank-{rank}", lambda: None) for rank in range(3)]
    expected = b"".join(b"%d\n" % number * 1000 for number in range(1000))  # several slices
    marks = [(expected.index(b"\n%d\n" % number) + 1, float(number)) for number in range(1, 1000)]
    closed = [threading.Event() for _ in files]
    for number in range(1000):
        for file in files:
            thread.put(file, b"%d\n" % number * 1000, number or None)
    for file, event in zip(files, closed, strict=True):
        thread.close(file, event.set)
    assert all(event.wait(10) for event in closed)
    assert all((tmp_path / f"rank-{rank}").read_bytes() == expected for rank in range(3))
    thread.stop(10)
    assert thread.queued_bytes == 0
    for rank in range(3):
        with Times(tmp_path / f"rank-{rank}") as times:
            assert times.between(0, len(expected)) == marks


def test_what_the_thread_says_in_our_log_says_of_which_run(tmp_path: Path) -> None:
    said: dict[str, object] = {}
    with structlog.contextvars.bound_contextvars(run="train@1a2b3c"):
        thread = DiskThread(1 << 30, lambda: None)
    file = LogFile(tmp_path / "rank", lambda: said.update(structlog.contextvars.get_contextvars()))
    thread.put(file, b"x")
    thread.stop(10)
    assert said == {"run": "train@1a2b3c"}
