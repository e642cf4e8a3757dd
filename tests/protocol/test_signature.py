"""What makes two failures one cause: the exception and its place, the signal, the code; never the rank."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import signature
from protocol.messages.member import RankReport, SpawnFailure, Stall, StallAction, StallState
from tests.protocol.build import exited

TRACEBACK = (
    b"Traceback (most recent call last):",
    b'  File "/job/train.py", line 80, in <module>',
    b"    main()",
    b'  File "/job/model.py", line 31, in forward',
    b"    return a @ b",
    b"           ~~^~~",
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB on GPU 3",
)


def test_an_exception_is_its_type_and_the_place_where_it_was_raised() -> None:
    assert signature.of_code(1, TRACEBACK) == "torch.OutOfMemoryError at /job/model.py:31"


def test_the_rank_that_torch_puts_before_each_line_is_no_part_of_it() -> None:
    told = {signature.of_code(1, [b"[rank%d]: %s" % (rank, line) for line in TRACEBACK]) for rank in (0, 3, 117)}
    assert told == {"torch.OutOfMemoryError at /job/model.py:31"}


def test_what_is_written_behind_the_traceback_and_a_cut_beginning_change_nothing() -> None:
    assert signature.of_code(1, (*TRACEBACK[3:], b"wandb: synced")) == signature.of_code(1, TRACEBACK)


def test_of_chained_exceptions_the_last_one_counts() -> None:
    other = (b"", b"During handling of the above exception, another exception occurred:", b"")
    last = (b'  File "/job/io.py", line 9, in save', b"    raise", b"OSError")
    assert signature.of_code(1, (*TRACEBACK, *other, *last)) == "OSError at /job/io.py:9"


@pytest.mark.parametrize("lines", [(), (b"killed",), TRACEBACK[:4], (*TRACEBACK[:4], b"  ... cut")])
def test_without_a_whole_traceback_the_code_is_what_is_known(lines: tuple[bytes, ...]) -> None:
    assert signature.of_code(7, lines) == "exit code 7"


def test_a_signal_and_the_lack_of_memory_have_their_names() -> None:
    assert signature.of_exit(exited(signal=11)) == "SIGSEGV"
    assert signature.of_exit(exited(3)) == "exit code 3"


def test_a_hang_is_what_the_rank_was_in_and_the_limit_that_passed() -> None:
    stall = Stall(
        state=StallState.ALIVE, silent_s=9.0, limit_s=5.0, setting="hang.phases.eval", action=StallAction.RESTART
    )
    report = RankReport(rank=3, local_rank=3, pid=1, started=True, phase="eval", stall=stall)
    assert signature.of_stalls([report]) == "hang in phase eval at hang.phases.eval"


def test_a_spawn_that_fails_is_its_path_and_the_reason() -> None:
    assert signature.of_spawn(SpawnFailure(rank=1, path="/x", reason="No such file")) == "spawn of /x: No such file"


@given(st.lists(st.binary(max_size=200), max_size=30))
def test_whatever_a_rank_writes_there_is_a_signature_of_one_short_line(lines: list[bytes]) -> None:
    found = signature.of_code(1, lines)
    assert found
    assert len(found) <= signature.SIGNATURE_MAX_CHARS
    assert found.isprintable()
