"""A stand-in for the runner: subreaper and parent of strays, which say their pids on our standard output.

`stand_in.py INCARNATION LOCK_FD CGROUP STRAY... --guard PID --page-fd FD --poke-fd FD`. `hold SECONDS` on its input is
how long the lease goes on from now, `hold none` ends it, `start STRAY` starts another one. It ends with 3 when its
input does. When its guard has died it starts a replacement, as the runner does.
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
from supervisor.shell.clock import boot_s
from supervisor.shell.lease_page import LeasePage

incarnation, lock_fd, group, *strays, _, guard_pid, _, page_fd, _, poke_fd = sys.argv[1:]
fds = sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}"))
page = LeasePage(int(page_fd), int(poke_fd))


def say(name: str, value: object) -> None:
    os.write(1, f"{name} {value}\n".encode())


assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
guard_fd = guarding.parent_pidfd(int(guard_pid))
assert guard_fd is not None
stray = os.path.join(os.path.dirname(os.path.abspath(__file__)), "stray.py")
env = {"PATH": os.environ["PATH"], tree.MARKER: incarnation}


def start(kind: str) -> int:
    return subprocess.Popen([sys.executable, stray, kind], env=env, start_new_session=True, close_fds=True).pid


for kind in strays:
    start(kind)
facts = {
    "pid": os.getpid(),
    "page": [page.page_fd, page.poke_fd],
    "cwd": os.getcwd(),
    "ignored": [int(n) for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN],
    "blocked": [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
    "fds": fds,
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
            argv = guarding.watch_argv(incarnation, int(lock_fd), None if group == "-" else group, os.getpid(), page)
            kept = (int(lock_fd), page.page_fd, page.poke_fd)
            replacement = subprocess.Popen(argv, pass_fds=kept, start_new_session=True)
            say("replacement", replacement.pid)
        elif words := os.read(0, 4096).decode().split():
            if words[0] == "start":
                say("started", start(words[1]))
            else:
                page.hold(None if words[1] == "none" else boot_s() + float(words[1]))
                say("held", os.getpid())
        else:
            sys.exit(3)
