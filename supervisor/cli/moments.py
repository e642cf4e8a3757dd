"""Points in time: as people write them behind --since and --until, and as they are shown to them."""

import argparse
import re
import time

from supervisor.cli.arguments import UsageError
from supervisor.shell.clock import utc_text, wall_s

FORM = "10m (ago), 14:05, 14:05:30 or 2026-11-29T14:05:30Z"

_CLOCK = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")


def moment_s(option: str, text: str, now_s: float) -> float:
    """The wall clock's seconds of `10m` or `1h30m` (so long ago), `14:05[:30]` (when a clock here last showed that),
    or a date with time in RFC 3339, which is local where it names no zone. Raises UsageError."""
    if match := _CLOCK.fullmatch(text):
        return _last_time(int(match[1]), int(match[2]), int(match[3] or 0), now_s)
    if re.match(r"[0-9]{4}-", text):
        from datetime import datetime  # only where a date is given

        try:
            return datetime.fromisoformat(text).timestamp()
        except (ValueError, OverflowError, OSError):
            raise _unclear(option, text, "is no date with a time") from None
    from protocol.checks import parse_duration_s  # only where a duration is given

    try:
        ago_s = parse_duration_s(text.removeprefix("-"))
        if text.startswith("-"):
            raise ValueError(f"without its sign, {text[1:]} is so long ago")
        return now_s - ago_s
    except ValueError as exc:
        raise _unclear(option, text, f"is no time: {exc}") from None


LATER_FORM = "02:30, 2026-12-01T02:30 or +3h"


def later_s(option: str, text: str, now_s: float) -> float:
    """The wall clock's seconds of `02:30[:00]` (when a clock here next shows that), of `+3h` or `in 3h`, or of a date
    with time in RFC 3339, which is local where it names no zone. Raises UsageError, also where that has passed."""
    if match := _CLOCK.fullmatch(text):
        return _next_time(int(match[1]), int(match[2]), int(match[3] or 0), now_s)
    from protocol.checks import MAX_DURATION_S, parse_duration_s  # only where a moment to come is given

    if match := re.fullmatch(r"(?:\+|in )\s*(.+)", text):
        try:
            return now_s + parse_duration_s(match[1])
        except ValueError as exc:
            raise _unclear(option, text, f"is no time to come: {exc}", LATER_FORM) from None
    if re.match(r"[0-9]{4}-", text):
        then_s = moment_s(option, text, now_s)
        if then_s < now_s:
            raise _unclear(option, text, "has passed", LATER_FORM)
        if then_s > now_s + MAX_DURATION_S:
            raise _unclear(option, text, "is more than a year from now", LATER_FORM)
        return then_s
    raise _unclear(option, text, "is no time to come", LATER_FORM)


def period(arguments: argparse.Namespace) -> tuple[float | None, float | None]:
    """What --since and --until say, beside --follow. Raises UsageError where they make no sense."""
    now_s = wall_s()
    since_s = None if arguments.since is None else moment_s("--since", arguments.since, now_s)
    until_s = None if arguments.until is None else moment_s("--until", arguments.until, now_s)
    if since_s is not None and until_s is not None and until_s <= since_s:
        raise UsageError("--until is not after --since: nothing lies between", f"write them like {FORM}")
    if until_s is not None and arguments.follow:
        raise UsageError("--follow goes on to the end of the run, so --until has no use", "leave one of them out")
    return since_s, until_s


def _unclear(option: str, text: str, problem: str, form: str = FORM) -> UsageError:
    return UsageError(f"{option} {text!r} {problem}", f"write it like {form}")


def _last_time(hour: int, minute: int, second: int, now_s: float) -> float:
    today = time.localtime(now_s)
    for days_ago in (0, 1):
        then_s = time.mktime((today.tm_year, today.tm_mon, today.tm_mday - days_ago, hour, minute, second, 0, 0, -1))
        if then_s <= now_s:
            break
    return then_s


def _next_time(hour: int, minute: int, second: int, now_s: float) -> float:
    today = time.localtime(now_s)
    for days in (0, 1):
        then_s = time.mktime((today.tm_year, today.tm_mon, today.tm_mday + days, hour, minute, second, 0, 0, -1))
        if then_s >= now_s:
            break
    return then_s


def clock(at_s: float) -> str:
    """`14:05:30` as the clock on this node's wall shows it."""
    return time.strftime("%H:%M:%S", time.localtime(at_s))


def date_and_clock(at_s: float) -> str:
    """`2026-11-29 14:05:30` as calendar and clock on this node's wall show it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def local_time(at_s: float) -> str:
    """`14:05:30.123` as the clock on this node's wall shows it; as many blanks where the time is not known."""
    if not at_s:
        return " " * len("14:05:30.123")
    whole, ms = divmod(round(at_s * 1000), 1000)
    return f"{clock(whole)}.{ms:03}"


def utc_time(at_s: float) -> str:
    """RFC 3339 in UTC, with milliseconds; as many blanks where the time is not known."""
    if not at_s:
        return " " * len("2026-11-29T14:05:30.123Z")
    return utc_text(at_s)
