"""A stand-in for the runner: subreaper and parent of strays, which say their pids on our standard output.

`stand_in.py INCARNATION LOCK_FD CGROUP STRAY... --guard PID`. It ends with 3 when its input ends. When its guard
has died it starts a replacement, as the runner does.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys

sys.path.append(os.path.abspath(f"{__file__}/../../../.."))

from supervisor.shell import cgroup, guarding, tree

incarnation, lock_fd, group, *strays, _, guard_pid = sys.argv[1:]


def say(name: str, value: object) -> None:
    os.write(1, f"{name} {value}\n".encode())


assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
guard_fd = guarding.parent_pidfd(int(guard_pid))
assert guard_fd is not None
stray = os.path.join(os.path.dirname(os.path.abspath(__file__)), "stray.py")
env = {"PATH": os.environ["PATH"], tree.MARKER: incarnation}
for kind in strays:
    subprocess.Popen([sys.executable, stray, kind], env=env, start_new_session=True, close_fds=True)
facts = {
    "pid": os.getpid(),
    "cwd": os.getcwd(),
    "ignored": [int(n) for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN],
    "blocked": [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
    "fds": sorted(
        fd for fd in map(int, os.listdir("/proc/self/fd")) if fd != guard_fd and os.path.exists(f"/proc/self/fd/{fd}")
    ),
    "group": cgroup.parse_memberships(cgroup.read_text("/proc/self/cgroup")).get("", ""),
}
say("facts", json.dumps(facts))

poll = select.poll()
poll.register(0, select.POLLIN)
poll.register(guard_fd, select.POLLIN)
while True:
    for fd, _ in poll.poll():
        if fd == guard_fd:
            poll.unregister(guard_fd)
            argv = guarding.watch_argv(incarnation, int(lock_fd), None if group == "-" else group, os.getpid())
            replacement = subprocess.Popen(argv, pass_fds=(int(lock_fd),), start_new_session=True)
            say("replacement", replacement.pid)
        elif not os.read(0, 4096):
            sys.exit(3)
