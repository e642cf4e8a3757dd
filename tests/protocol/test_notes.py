"""What `supctl events` tells of an incident: the second time only what is new."""

from msgspec.structs import replace

from protocol import notes
from protocol.messages.control import Incident

HUNG = Incident(number=1, generation=0, cause="hang", summary="rank 1 on n1 (pid 7) hangs", node="n1", rank=1, pid=7)


def test_a_correction_tells_what_is_new() -> None:
    ended = replace(HUNG, signal="SIGABRT", shell_code=134, wall_s=5.0)
    known = replace(ended, stderr_tail=(b"Current thread",))
    other = replace(HUNG, rank=0, summary="rank 0 on n1 (pid 6) exited with code 3", exit_code=3, shell_code=3)
    texts = [
        note and note.text
        for note in (
            notes.corrected(HUNG, ended),
            notes.corrected(ended, known),
            notes.corrected(HUNG, replace(HUNG, exit_code=3, shell_code=3)),
            notes.corrected(HUNG, other),
        )
    ]
    assert texts == [
        "rank 1 on n1 (pid 7): ended by SIGABRT",
        "rank 1 on n1 (pid 7): its last lines are known",
        "rank 1 on n1 (pid 7): exited with code 3",
        "rank 0 on n1 (pid 6) exited with code 3",
    ]


def test_a_correction_that_adds_nothing_is_not_told() -> None:
    assert notes.corrected(HUNG, HUNG) is None
    assert notes.corrected(HUNG, replace(HUNG, wall_s=5.0)) is None
