"""A descriptor that wakes up who waits in poll(2) at a point in boot time (timerfd_create(2)).

The timeout of poll(2) does not count the time for which a machine is suspended; this goes off as soon as that is over.
Python has it from 3.13 on only.
"""

import ctypes
import os
import time

_libc = ctypes.CDLL(None, use_errno=True)
_TFD_TIMER_ABSTIME = 1  # linux/timerfd.h; the flags of timerfd_create are those of open(2)


class BootTimer:
    """`fd` is readable from the time on that was set last, until another one is."""

    def __init__(self) -> None:
        """Raises OSError where there is no descriptor left."""
        self.fd: int = _libc.timerfd_create(time.CLOCK_BOOTTIME, os.O_CLOEXEC | os.O_NONBLOCK)
        _check(self.fd)

    def set(self, at_s: float | None) -> None:
        """In boot-time seconds; None, or 0: never."""
        seconds, rest = divmod(at_s or 0.0, 1)
        once_at = (ctypes.c_long * 4)(0, 0, int(seconds), int(rest * 1e9))  # struct itimerspec: no interval, a time
        _check(_libc.timerfd_settime(self.fd, _TFD_TIMER_ABSTIME, once_at, None))


def _check(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
