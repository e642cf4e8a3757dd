"""`supctl events`: which of them."""

import pytest

from protocol.messages.control import End, EventRecord
from tests.cli.conftest import Daemon, Supctl, a_run, one_run


def event(wall_s: float, kind: str) -> EventRecord:
    return EventRecord(id=1, wall_s=wall_s, run="hello@1a2b3c", generation=0, kind=kind, text="")


@pytest.mark.parametrize(
    ("flags", "kinds"),
    [
        ([], ["job.accepted", "rank.stalled", "rank.resumed", "job.failed"]),
        (["--type", "rank.*"], ["rank.stalled", "rank.resumed"]),
        (["--type", "job.failed,rank.res*"], ["rank.resumed", "job.failed"]),
        (["--since", "1970-01-01T00:03:20Z"], ["rank.stalled", "rank.resumed", "job.failed"]),
        (["--since", "1970-01-01T00:03:20Z", "--until", "1970-01-01T00:05:00Z"], ["rank.stalled"]),
    ],
)
def test_events_are_chosen_by_kind_and_time(supctl: Supctl, daemon: Daemon, flags: list[str], kinds: list[str]) -> None:
    events = [
        event(100, "job.accepted"),
        event(200, "rank.stalled"),
        event(300, "rank.resumed"),
        event(400, "job.failed"),
    ]
    daemon(one_run(a_run(), *events, End()))
    lines = supctl("events", *flags).out.splitlines()[1:]
    assert [line.split()[2] for line in lines] == kinds


@pytest.mark.parametrize(
    ("kinds", "near"),
    [
        ("nosuch", ""),
        ("job.*,incident.open", "; did you mean `incident.opened`?"),
        ("ranks", "; did you mean `ranks.*`?"),
    ],
)
def test_a_kind_that_there_is_not_is_an_error_that_names_the_near_one(
    supctl: Supctl, daemon: Daemon, kinds: str, near: str
) -> None:
    daemon(one_run(a_run(), End()))
    result = supctl("events", "--type", kinds)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"error[C010]: --type: there are no events {kinds.rpartition(',')[2]!r}{near}\n→ ")


@pytest.mark.parametrize("flags", [["--type", ""], ["--type", "Rank"], ["--since", "x"], ["-f", "--until", "10m"]])
def test_a_choice_that_makes_no_sense_is_one_error_with_a_next_step(
    supctl: Supctl, daemon: Daemon, flags: list[str]
) -> None:
    daemon(one_run(a_run(), End()))
    result = supctl("events", *flags)
    assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 2)
