"""One worker's main process: every state meets every event."""

import pytest

from protocol.errors import InvalidTransition
from protocol.lifecycle import (
    AbortRequested,
    Event,
    Exited,
    Killing,
    Reaped,
    Running,
    State,
    StopRequested,
    Terminating,
    Tick,
    Warned,
    deadline_s,
    step,
    stop_request,
)

NOW_S = 100.0
TERM, KILL, USR1, ABRT, CONT = 15, 9, 10, 6, 18

STOP = StopRequested(pre_signal=0, pre_wait_s=0.0, signal=TERM, grace_s=30.0)
STOP_AFTER_SAVE = StopRequested(pre_signal=USR1, pre_wait_s=60.0, signal=TERM, grace_s=30.0)
STOP_NOW = StopRequested(pre_signal=USR1, pre_wait_s=60.0, signal=TERM, grace_s=30.0, now=True)
SHORT_STOP = StopRequested(pre_signal=0, pre_wait_s=0.0, signal=TERM, grace_s=5.0)

WARNED = Warned(term_at_s=150.0, signal=TERM, grace_s=30.0)
WARNED_DUE = Warned(term_at_s=NOW_S, signal=TERM, grace_s=30.0)
TERMINATING = Terminating(kill_at_s=120.0)
TERMINATING_DUE = Terminating(kill_at_s=NOW_S)

ABORT = AbortRequested(grace_s=30.0)

STATES: list[State] = [Running(), WARNED, WARNED_DUE, TERMINATING, TERMINATING_DUE, Killing(), Exited()]
EVENTS: list[Event] = [STOP, STOP_AFTER_SAVE, STOP_NOW, SHORT_STOP, ABORT, Reaped(), Tick()]

STEPS: dict[tuple[State, Event], tuple[State, list[int]]] = {
    (Running(), STOP): (Terminating(130.0), [TERM]),
    (Running(), STOP_AFTER_SAVE): (Warned(160.0, TERM, 30.0), [USR1]),
    (Running(), STOP_NOW): (Killing(), [KILL]),
    (Running(), SHORT_STOP): (Terminating(105.0), [TERM]),
    (Running(), ABORT): (Terminating(130.0), [ABRT, CONT]),
    (WARNED, STOP): (Warned(NOW_S, TERM, 30.0), []),
    (WARNED, STOP_NOW): (Killing(), [KILL]),
    (WARNED, SHORT_STOP): (Warned(NOW_S, TERM, 5.0), []),
    (WARNED_DUE, STOP_NOW): (Killing(), [KILL]),
    (WARNED_DUE, SHORT_STOP): (Warned(NOW_S, TERM, 5.0), []),
    (WARNED_DUE, Tick()): (Terminating(130.0), [TERM]),
    (TERMINATING, STOP_NOW): (Killing(), [KILL]),
    (TERMINATING, SHORT_STOP): (Terminating(105.0), []),
    (TERMINATING_DUE, STOP_NOW): (Killing(), [KILL]),
    (TERMINATING_DUE, Tick()): (Killing(), [KILL]),
}
"""Every pair that is not here is a no-op; but Reaped leads to Exited from everywhere, once."""


@pytest.mark.parametrize("state", STATES, ids=str)
@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_every_state_meets_every_event(state: State, event: Event) -> None:
    if isinstance(event, Reaped):
        if isinstance(state, Exited):
            with pytest.raises(InvalidTransition):
                step(state, event, NOW_S)
        else:
            assert step(state, event, NOW_S) == (Exited(), [])
    else:
        assert step(state, event, NOW_S) == STEPS.get((state, event), (state, []))


def test_a_tick_before_the_deadline_changes_nothing() -> None:
    for state in (WARNED, TERMINATING):
        due_s = deadline_s(state)
        assert due_s is not None
        assert step(state, Tick(), due_s - 0.001) == (state, [])


def test_a_stop_leads_from_the_pre_signal_over_the_signal_to_sigkill_each_at_its_time() -> None:
    state, sent = step(Running(), STOP_AFTER_SAVE, NOW_S)
    assert (deadline_s(state), sent) == (160.0, [USR1])
    state, sent = step(state, Tick(), 160.0)
    assert (deadline_s(state), sent) == (190.0, [TERM])
    state, sent = step(state, Tick(), 190.0)
    assert (deadline_s(state), sent) == (None, [KILL])
    assert step(state, Tick(), 1000.0) == (Killing(), [])


def test_a_pre_signal_without_a_wait_is_sent_just_before_the_signal() -> None:
    stop = StopRequested(pre_signal=USR1, pre_wait_s=0.0, signal=TERM, grace_s=30.0)
    assert step(Running(), stop, NOW_S) == (Terminating(130.0), [USR1, TERM])


def test_a_job_whose_stop_signal_is_sigkill_gets_no_second_one() -> None:
    stop = StopRequested(pre_signal=0, pre_wait_s=0.0, signal=KILL, grace_s=30.0)
    assert step(Running(), stop, NOW_S) == (Killing(), [KILL])


def test_a_request_holds_the_numbers_of_the_names_in_the_job_file() -> None:
    assert stop_request("SIGUSR1", 60.0, "SIGTERM", 30.0) == STOP_AFTER_SAVE
    assert stop_request("", 0.0, "SIGTERM", 30.0) == STOP
    assert stop_request("SIGUSR1", 60.0, "SIGTERM", 30.0, now=True) == STOP_NOW
