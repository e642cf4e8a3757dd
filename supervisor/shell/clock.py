"""The only place where time is read.

Deadlines use CLOCK_BOOTTIME, which also runs while a machine is suspended (clock_gettime(2)); the wall
clock is for people and decides nothing.
"""

import time


def boot_s() -> float:
    """Seconds since boot, suspended time included: the `now_s` of every machine."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wall_s() -> float:
    """Seconds since 1970, for time stamps that people read."""
    return time.time()  # noqa: TID251  # the one exception


def utc_text(time_s: float) -> str:
    """A time of the wall clock as RFC 3339 has it, in UTC with milliseconds: `2026-11-29T14:05:30.123Z`."""
    whole, ms = divmod(round(time_s * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{ms:03}Z"
