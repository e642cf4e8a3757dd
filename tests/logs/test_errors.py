"""supervisor/logs/errors.py"""

import pytest

from supervisor.logs.blocks import Block
from supervisor.logs.errors import PLAIN_LINES_MAX, Errors


def picked(*pieces: tuple[float, bytes], begin: int = 0) -> bytes:
    """What is shown of a stream whose pieces were read at these times."""
    errors, offset, shown, written = Errors(), 0, b"", b"".join(data for _, data in pieces)
    errors.begin = begin
    for read_s, data in pieces:
        for block in errors.pick(Block(read_s, data, read_s, offset)):
            assert (block.key_s, block.read_s) == (read_s, read_s)
            assert block.data == written[block.offset : block.offset + len(block.data)]
            shown += block.data
        offset += len(data)
    return shown


TRACEBACK = b"""\
Traceback (most recent call last):
  File "train.py", line 212, in step
    loss.backward()
RuntimeError: CUDA error: uncorrectable ECC error encountered
"""
CHAINED = TRACEBACK + b"\nDuring handling of the above exception, another exception occurred:\n\n" + TRACEBACK
NESTED = b'[rank3]: Traceback (most recent call last):\n[rank3]:   File "x.py", line 1\n[rank3]: ValueError: no\n'
FATAL = b"""\
Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "x.py", line 3 in f

Extension modules: numpy
"""
CPP = b"terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error\nframe #0: a\nframe #1: b\n"
NCCL = b"gpu-02:4711:4801 [3] NCCL WARN [Service thread] connection closed\n"


@pytest.mark.parametrize(
    "error",
    [
        TRACEBACK,
        CHAINED,
        NESTED,
        FATAL,
        CPP,
        NCCL,
        b"E1129 11:46:02.123456 4711 cuda.cc:77] no device\n",
        b"F1129 11:46:02.123456 4711 check.cc:7] Check failed: x\n*** Check failure stack trace: ***\n    @ 0x7f\n",
        b"[rank0]:[E1129 11:46:02.1 ProcessGroupNCCL.cpp:616] Watchdog caught collective operation timeout\n",
        b"2026-11-29 11:46:02,113 - train - ERROR - loss is nan\n",
        b"CRITICAL:root:no memory\n",
        b"ts=7 level=ERROR msg=x\n",
        b'*** Aborted at 1764416762 (unix time) try "date -d @1764416762" ***\nPC: @ 0x0 (unknown)\n',
        b"*** SIGSEGV (@0x0) received by PID 4711; stack trace: ***\n    @ 0x7f (unknown)\n",
        b"Segmentation fault (core dumped)\n",
        b"Exception in thread Thread-3:\n" + TRACEBACK,
    ],
)
def test_an_error_is_shown_whole_and_nothing_around_it(error: bytes) -> None:
    before, after = (1.0, b"step 1 loss 2.3\n  indented\n"), (3.0, b"step 2 loss 2.2\n")
    assert picked(before, (2.0, error), after) == error
    by_line = [(2.0 + number / 1000, line) for number, line in enumerate(error.splitlines(keepends=True))]
    assert picked(before, *by_line, after) == error


@pytest.mark.parametrize(
    "line",
    [
        b"W1129 11:46:02 dataloader: worker 3 took 4.1s\n",
        b"2026-11-29 11:46:02 INFO step 3\n",
        b"Epoch 1000: 5 errors\n",
        b"TORCH_NCCL_ASYNC_ERROR_HANDLING=1\n",
        b"received SIGTERM\n",
        b"NCCL INFO Connected all rings\n",
    ],
)
def test_what_is_no_error_is_not_shown(line: bytes) -> None:
    assert picked((1.0, line)) == b""


def test_what_comes_after_a_pause_or_is_a_log_line_of_a_lower_level_is_something_else() -> None:
    error = b"ERROR loss is nan\n"
    assert picked((1.0, error), (1.04, b"at step 7\n"), (1.2, b"more\n")) == error + b"at step 7\n"
    assert picked((1.0, error), (1.01, b"INFO going on\n"), (1.02, b"more\n")) == error
    assert picked((1.0, error), (1.3, b"  detail\n"), (2.5, b"  too late\n")) == error + b"  detail\n"


def test_a_flood_behind_an_error_does_not_belong_to_it_for_ever() -> None:
    lines = picked((1.0, b"ERROR\n" + b"x\n" * 1000)).splitlines()
    assert len(lines) == 1 + PLAIN_LINES_MAX
    assert len(picked((1.0, TRACEBACK + b"  x\n" * 1000)).splitlines()) == len(TRACEBACK.splitlines()) + 1000


def test_progress_bars_and_bytes_of_any_kind_are_read_by_lines() -> None:
    assert picked((1.0, b"10%\r20%\xff\0\r30%\nERROR \xff\r\n40%\r\x1b[31m")) == b"ERROR \xff\r\n40%\r\x1b[31m"


def test_of_what_was_shown_before_only_the_rest_is_shown() -> None:
    """A follower that comes back in the middle of a traceback."""
    begin = TRACEBACK.index(b"    loss")
    assert picked((1.0, TRACEBACK), (3.0, b"other\n"), begin=begin) == TRACEBACK[begin:]
    assert picked((1.0, b"other\n" * 9), (1.01, b"another\n"), begin=54) == b""
