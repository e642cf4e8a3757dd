"""One worker's main process, from its spawn to its reaped end.

    RUNNING ──stop──▶ WARNED ──pre_wait──▶ TERMINATING ──grace──▶ KILLING
       │                 │                      │                    │
       └─────────────────┴──────reaped──────────┴────────────────────┴──▶ EXITED

Without a pre-signal a stop leads straight to TERMINATING, with `now` straight to KILLING; an abort leads to
TERMINATING by SIGABRT. A second stop can only make the end come sooner. What its process
leaves behind is the member's business (member.py).
"""

from protocol.dataclass import dataclass
from protocol.errors import InvalidTransition
from protocol.signals import SIGABRT, SIGCONT, SIGKILL, signal_number


@dataclass(frozen=True)
class Running:
    """Nobody has asked it to end."""


@dataclass(frozen=True)
class Warned:
    """Got the pre-signal ("save now"); the real one follows at `term_at_s`."""

    term_at_s: float
    signal: int
    grace_s: float


@dataclass(frozen=True)
class Terminating:
    """Got the stop signal; SIGKILL follows at `kill_at_s`."""

    kill_at_s: float


@dataclass(frozen=True)
class Killing:
    """Got SIGKILL; only the kernel can be waited for."""


@dataclass(frozen=True)
class Exited:
    """Its status is known."""


State = Running | Warned | Terminating | Killing | Exited


@dataclass(frozen=True)
class StopRequested:
    """End it: `pre_signal` (0: none), after `pre_wait_s` `signal`, after `grace_s` SIGKILL; or SIGKILL `now`.

    With a `pre_wait_s` of 0 the pre-wait of a worker that has the pre-signal is over.
    """

    pre_signal: int
    pre_wait_s: float
    signal: int
    grace_s: float
    now: bool = False


@dataclass(frozen=True)
class AbortRequested:
    """It hangs: SIGABRT, so that it leaves its stacks (SIGCONT lets it do so), after `grace_s` SIGKILL."""

    grace_s: float


@dataclass(frozen=True)
class Reaped:
    """Its status was read."""


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = StopRequested | AbortRequested | Reaped | Tick


def stop_request(
    pre_signal: str, pre_wait_s: float, signal: str, grace_s: float, *, now: bool = False
) -> StopRequested:
    """A StopRequested from the names that job.toml holds."""
    number = signal_number(pre_signal) if pre_signal else 0
    return StopRequested(number, pre_wait_s, signal_number(signal), grace_s, now)


def deadline_s(state: State) -> float | None:
    """When a Tick is due, in the caller's clock; None: never."""
    match state:
        case Warned(term_at_s):
            return term_at_s
        case Terminating(kill_at_s):
            return kill_at_s
        case Running() | Killing() | Exited():
            return None


def step(state: State, event: Event, now_s: float) -> tuple[State, list[int]]:
    """Advance one worker by one event; returns the signals to send to it, in order.

    What is already under way is a no-op. A second reaping raises InvalidTransition.
    """
    match event:
        case Reaped():
            if isinstance(state, Exited):
                raise InvalidTransition(state, event)
            return Exited(), []
        case Tick():
            return _on_tick(state, now_s)
        case StopRequested():
            return _on_stop(state, event, now_s)
        case AbortRequested(grace_s):
            if isinstance(state, Running):
                return Terminating(now_s + grace_s), [SIGABRT, SIGCONT]
            return state, []


def _on_tick(state: State, now_s: float) -> tuple[State, list[int]]:
    match state:
        case Warned(term_at_s, signal, grace_s) if now_s >= term_at_s:
            return _terminate(signal, grace_s, now_s)
        case Terminating(kill_at_s) if now_s >= kill_at_s:
            return Killing(), [SIGKILL]
        case _:
            return state, []


def _on_stop(state: State, stop: StopRequested, now_s: float) -> tuple[State, list[int]]:
    match state:
        case Killing() | Exited():
            return state, []
        case Running() | Warned() | Terminating() if stop.now:
            return Killing(), [SIGKILL]
        case Running() if stop.pre_signal and stop.pre_wait_s > 0:
            return Warned(now_s + stop.pre_wait_s, stop.signal, stop.grace_s), [stop.pre_signal]
        case Running():
            state, signals = _terminate(stop.signal, stop.grace_s, now_s)
            return state, [stop.pre_signal, *signals] if stop.pre_signal else signals
        case Warned(term_at_s):
            term_at_s = min(term_at_s, now_s + stop.pre_wait_s)  # if that is now, the next tick is due at once
            return Warned(term_at_s, stop.signal, min(state.grace_s, stop.grace_s)), []
        case Terminating(kill_at_s):
            return Terminating(min(kill_at_s, now_s + stop.grace_s)), []


def _terminate(signal: int, grace_s: float, now_s: float) -> tuple[State, list[int]]:
    if signal == SIGKILL:
        return Killing(), [SIGKILL]
    return Terminating(now_s + grace_s), [signal]
