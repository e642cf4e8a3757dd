"""Names and shell codes of signals and exits, as people know them."""

import signal

SIGABRT = int(signal.SIGABRT)
SIGCONT = int(signal.SIGCONT)
SIGKILL = int(signal.SIGKILL)


def signal_name(number: int) -> str:
    """SIGKILL, SIGRTMIN+3 …; `signal 99` where Linux has none of that number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        first, last = int(signal.SIGRTMIN), int(signal.SIGRTMAX)
        if first < number < last:
            return f"SIGRTMIN+{number - first}"
        return f"signal {number}"


def signal_number(name: str) -> int:
    """The number of a name as written in job.toml; raises KeyError where there is none."""
    return int(signal.Signals[name])


def shell_code(code: int | None, number: int | None) -> int:
    """What a shell would show for the exit: the code, or 128 + N for signal N (POSIX sh, section 2.8.2)."""
    return 128 + number if number is not None else code or 0
