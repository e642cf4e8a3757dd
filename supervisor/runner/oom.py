"""Whether the kernel killed a process for want of memory, as its memory controller counts it.

A kill by the controller looks like any other SIGKILL; only the counter `oom_kill` of the process's memory
cgroup tells it apart: in memory.oom_control (v1) or memory.events.local, else memory.events (v2).
"""

from protocol.dataclass import dataclass
from supervisor.shell.cgroup import Mount, parse_memberships, parse_mounts, read_text

_PF_EXITING = 0x4  # linux/sched.h, in field 9 of /proc/PID/stat
_NO_LIMIT_BYTES = 1 << 60  # v1 writes "no limit" as a huge number, v2 as "max"


@dataclass(frozen=False)
class _Seen:
    """What was seen of a process: its memory cgroup, and the counter at the last look and at the one before."""

    memberships: str  # its /proc/PID/cgroup, from which `group` follows
    group: "_Group"
    before: int
    last: int


@dataclass(frozen=True)
class _Group:
    """One memory cgroup: `folder` is where it is seen here, `top` where its hierarchy is mounted."""

    path: str
    folder: str
    top: str
    is_v2: bool

    def kills(self) -> int | None:
        """How many of its processes were killed for want of memory; None: it does not say."""
        for name in ("memory.events.local", "memory.events") if self.is_v2 else ("memory.oom_control",):
            for line in read_text(f"{self.folder}/{name}").splitlines():
                word, _, number = line.partition(" ")
                if word == "oom_kill":
                    return int(number)
        return None

    def limit(self) -> str:
        """The tightest limit on the way up, in words."""
        name = "memory.max" if self.is_v2 else "memory.limit_in_bytes"
        limits: list[int] = []
        folder = self.folder
        while folder.startswith(self.top):
            text = read_text(f"{folder}/{name}").strip()
            if text.isdecimal() and int(text) < _NO_LIMIT_BYTES:
                limits.append(int(text))
            folder = folder.rpartition("/")[0]
        return f"limit {min(limits) / (1 << 20):g} MiB" if limits else "no limit of its own: the machine ran short"


class OomWatch:
    """Looks at the memory cgroups of processes while they live, and tells of their deaths.

    Ranks often share one cgroup, so a rise of its counter is evidence for one death only, and only if it is
    newer than the look before the last: an older one was somebody else's, a data loader's say.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._mounts = parse_mounts(read_text(f"{proc}/self/mountinfo"))
        self._seen: dict[int, _Seen] = {}
        self._used: dict[str, int] = {}  # by folder: the counter up to which rises have been used

    def look(self, pid: int) -> None:
        """Note cgroup and counter of a process that was spawned.

        A process on its way out is left as it was seen last: the kernel has moved it to the root by then, and
        its end, which may take seconds, has been counted.
        """
        memberships = self._memberships(pid)
        group = self._group(memberships)
        kills = group.kills() if group is not None else None
        if group is None or kills is None or self._is_ending(pid):
            return
        seen = self._seen.get(pid)
        is_known = seen is not None and seen.group == group
        self._seen[pid] = _Seen(memberships, group, seen.last if seen is not None and is_known else kills, kills)

    def look_again(self) -> None:
        """Look at every process that was noted; to be called about once a second.

        As long as no counter rises and nobody is moved, it reads one file a process and one a cgroup.
        """
        kills = {group: group.kills() for group in {seen.group for seen in self._seen.values()}}
        for pid, seen in list(self._seen.items()):
            is_still = seen.before == seen.last == kills[seen.group]
            if not is_still or self._memberships(pid) != seen.memberships:
                self.look(pid)

    def evidence(self, pid: int) -> str:
        """What the controller says of a process that died by SIGKILL; "": nothing. It is forgotten then."""
        seen = self._seen.pop(pid, None)
        kills = seen.group.kills() if seen is not None else None
        if seen is None or kills is None:
            return ""
        unused = max(seen.before, self._used.get(seen.group.folder, 0))
        if kills <= unused:
            return ""
        self._used[seen.group.folder] = unused + 1
        return f"cgroup {seen.group.path}: oom_kill {unused} -> {kills}, {seen.group.limit()}"

    def forget(self, pid: int) -> None:
        """The process has ended in some other way."""
        self._seen.pop(pid, None)

    def _memberships(self, pid: int) -> str:
        return read_text(f"{self._proc}/{pid}/cgroup")

    def _group(self, memberships: str) -> _Group | None:
        """The memory cgroup of a process. v1 goes first: where it has the controller, v2 has it not."""
        paths = parse_memberships(memberships)
        v1 = [_group_at(mount, paths.get("memory")) for mount in self._mounts if "memory" in mount.controllers]
        v2 = [_group_at(mount, paths.get("")) for mount in self._mounts if mount.is_v2]
        return next((group for group in (*v1, *v2) if group is not None and group.kills() is not None), None)

    def _is_ending(self, pid: int) -> bool:
        """Whether it is a zombie, gone, or on its way: read after the cgroup, so that the cgroup is true."""
        fields = read_text(f"{self._proc}/{pid}/stat").rpartition(")")[2].split()
        return not fields or fields[0] in "ZX" or bool(int(fields[6]) & _PF_EXITING)


def _group_at(mount: Mount, path: str | None) -> _Group | None:
    folder = mount.folder(path) if path is not None else None
    return None if path is None or folder is None else _Group(path, folder.rstrip("/"), mount.point, mount.is_v2)
