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
