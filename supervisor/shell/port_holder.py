"""Who has a TCP port: for messages about one that cannot be used. Blocks, and looks at every process."""

import glob
import os

from supervisor.shell.cgroup import read_text

_LISTEN, _TIME_WAIT = "0A", "06"  # enum in the kernel's include/net/tcp_states.h

UNSEEN = "whose it is cannot be seen from here"


def port_holder(port: int, proc: str = "/proc") -> str:
    """The process that has this port in our network namespace, as far as it can be seen, in words for people.

    As in `pid 4711 (python3), of run a@12ab34`; for another user's process only that user.
    """
    try:
        return _holder(port, proc)
    except OSError:  # no descriptor is left to look with
        return UNSEEN


def _holder(port: int, proc: str) -> str:
    owners = _owners(port, proc)
    for inode in owners:
        pid = _pid_of(f"socket:[{inode}]", proc)
        if pid is not None:
            name = read_text(f"{proc}/{pid}/comm").strip()
            run = _run_of(f"{proc}/{pid}/environ")
            return f"pid {pid} ({name})" + (f", of run {run}" if run else "")
    return f"a process of uid {next(iter(owners.values()))} has it" if owners else UNSEEN


def _owners(port: int, proc: str) -> dict[str, str]:
    """The sockets on this port, inode to uid: those that listen first (proc_net(5))."""
    found: dict[str, tuple[bool, str]] = {}
    for table in ("tcp", "tcp6"):
        for line in read_text(f"{proc}/net/{table}").splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[1].endswith(f":{port:04X}") and words[3] != _TIME_WAIT:
                found[words[9]] = words[3] == _LISTEN, words[7]
    return {inode: uid for inode, (_, uid) in sorted(found.items(), key=lambda item: not item[1][0])}


def _pid_of(socket: str, proc: str) -> int | None:
    for link in glob.iglob(f"{proc}/[0-9]*/fd/*"):
        try:
            if os.readlink(link) == socket:
                return int(link.split("/")[-3])
        except OSError:  # it has just ended, or is closed
            continue
    return None


def _run_of(environ: str) -> str:
    variables = read_text(environ).split("\0")
    return next((v.partition("=")[2] for v in variables if v.startswith("SUPD_RUN=")), "")
