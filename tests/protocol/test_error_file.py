"""Error files of ranks: what is understood, and that anything else is told from it."""

import contextlib
import json

import hypothesis
import pytest
from hypothesis import strategies as st

from protocol import error_file, signature, verdict
from protocol.case import failed_at_s
from protocol.error_file import NotUnderstood
from protocol.messages.member import Part, RankError, RankExit
from tests.protocol.build import exited, rank, renewal

BEGAN_S, ENDED_S = 1000.5, 1060.25
STACK = 'Traceback (most recent call last):\n  File "/job/train.py", line 31, in main\nValueError: no shard\n'


def read(data: object) -> RankError:
    content = data if isinstance(data, bytes) else json.dumps(data).encode()
    return error_file.read(content, "/logs/e.json", began_wall_s=BEGAN_S, ended_wall_s=ENDED_S)


def of_record(message: object = "ValueError: no shard", **extra: object) -> dict[str, object]:
    return {"message": {"message": message, "extraInfo": extra}}


def test_what_record_writes_is_understood() -> None:
    found = read(of_record(py_callstack=STACK, timestamp="1050"))
    raised = "ValueError at /job/train.py:31"
    assert found == RankError(message="ValueError: no shard", raised=raised, file="/logs/e.json", ahead_s=9.25)


def test_what_ends_by_a_signal_has_its_message_outside() -> None:
    assert read({"message": "Signal 11", "timestamp": 1058}) == RankError(
        message="Signal 11", file="/logs/e.json", ahead_s=1.25
    )


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("ValueError: a\nb\n", "ValueError: a"),
        ("\n\n  late  \nx", "late"),
        ("\x1b[31mred", "[31mred"),
        ("\udcff", "�"),
        ("x" * 10_000, "x" * 499 + "…"),
    ],
)
def test_of_a_message_its_first_line_is_told_as_it_can_be_shown(message: str, told: str) -> None:
    assert read(of_record(message)).message == told


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"ValueError: no shard",
        json.dumps(of_record()).encode()[:-3],
        b"[" * 100_000,
        b"9" * 100_000,
        b"[]",
        b"3",
        b"null",
        b"{}",
        b'{"message": 3}',
        b'{"message": []}',
        b'{"message": {"message": {}}}',
        b'{"message": " \\n "}',
        b" " * error_file.BYTES_MAX + b"{}",
    ],
)
def test_what_is_no_error_file_is_not_understood(content: bytes) -> None:
    with pytest.raises(NotUnderstood):
        read(content)


@pytest.mark.parametrize("extra", [None, [], 3, {"py_callstack": 3, "timestamp": None}, {"py_callstack": "x"}])
def test_what_else_an_error_file_lacks_is_left_out(extra: object) -> None:
    found = read({"message": {"message": "E", "extraInfo": extra}})
    assert found == RankError(message="E", file="/logs/e.json")


@pytest.mark.parametrize("time", ["999", "1061", "1060", "", "x", "nan", "inf", -5, 1e308, [], True])
def test_a_time_at_which_the_rank_did_not_live_is_not_believed(time: object) -> None:
    assert read(of_record(timestamp=time)).ahead_s == 0


def test_python_writes_numbers_that_are_none_and_they_are_read() -> None:
    assert read(of_record(timestamp=float("nan"))).message == "ValueError: no shard"


@hypothesis.given(
    st.binary() | st.recursive(st.none() | st.text() | st.floats(), st.lists).map(json.dumps).map(str.encode)
)
def test_no_content_does_harm(content: bytes) -> None:
    with contextlib.suppress(NotUnderstood):
        read(content)


def error(ahead_s: float = 0.0, raised: str = "") -> RankError:
    return RankError(message="ValueError: no shard", raised=raised, file="/e", ahead_s=ahead_s)


def test_an_exception_before_the_first_end_is_the_cause_also_of_a_rank_that_was_stopped() -> None:
    report = renewal(
        1,
        Part.STOPPING,
        0,
        rank(0, exited(1, order=0, ago_s=3.0)),
        rank(1, exited(signal=15, order=1, by_us=True, ago_s=1.0, error=error(5.0, "ValueError at a.py:3"))),
        rank(2, exited(1, order=2, ago_s=1.0, error=error(4.0))),
    )
    found = verdict.incident(1, "n1", report)
    assert found is not None
    assert (found.rank, found.cause, found.signal, found.shell_code) == (1, "exit", None, None)
    assert found.summary == "rank 1 on n1 (pid 101) ended with the others: ValueError: no shard"
    assert found.cause_key == "ValueError at a.py:3"


@pytest.mark.parametrize(
    "late",
    [
        exited(1, order=1, ago_s=2.0, error=error(0.5)),  # after it
        exited(1, order=1, ago_s=2.0),
        exited(0, order=1, ago_s=2.0, error=error(9.0)),  # well in the end
    ],
)
def test_else_the_first_end_is_the_cause(late: RankExit) -> None:
    report = renewal(1, Part.STOPPING, 0, rank(0, exited(7, order=0, ago_s=3.0)), rank(1, late))
    found = verdict.incident(1, "n1", report)
    assert found is not None
    assert found.rank == 0


def test_a_rank_failed_when_it_raised_and_not_when_it_ended_at_last() -> None:
    report = renewal(1, Part.STOPPING, 0, rank(0, exited(1, ago_s=1.0, error=error(4.0))))
    found = verdict.incident(1, "n1", report)
    assert found is not None
    assert failed_at_s(found, report, now_s=100.0) == 95.0


def test_the_exception_is_the_signature_before_what_it_led_to() -> None:
    assert signature.of_exit(exited(signal=6, error=error(0, "ValueError at a.py:3"))) == "ValueError at a.py:3"
    assert signature.of_exit(exited(signal=6, error=error())) == "SIGABRT"
