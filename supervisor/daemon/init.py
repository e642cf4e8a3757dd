"""supd as pid 1, in a container without an init: who reaps the orphans."""

import os
import signal
from types import FrameType

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def stay_behind_as_init() -> None:
    """As pid 1: return in a child, which is supd from here on; this process reaps whatever comes to it.

    Every orphan of a pid namespace becomes a child of its pid 1 (pid_namespaces(7)), and a zombie if that does not
    wait for it. supd itself waits for nobody but its own children, so it leaves this to a process that does nothing
    else. That one passes signals on and ends as supd does, and the kernel then ends all others.
    """
    if os.getpid() != 1:
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # until there is somebody to pass them on to
    supd = os.fork()
    if supd == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        return

    def pass_on(number: int, _frame: FrameType | None) -> None:
        os.kill(supd, number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    while True:
        pid, status = os.wait()
        if pid == supd:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
