"""The kernel's control groups: where they are mounted, who is where, and the one group that a runner gets.

Used by supd, the runner and the guard, so it is kept light: strings instead of pathlib, no dataclasses
(docs/decisions/001). Nothing here raises where cgroups are missing or not ours to write: one goes without.
Formats: proc_pid_mountinfo(5), cgroups(7), and the kernel's admin-guide/cgroup-v2.
"""

import errno
import os

NOTHING_SEEN = frozenset({errno.EMFILE, errno.ENFILE})
"""Errors after which nothing is known: no descriptor was left to look with. All others mean that it is not there."""

_PREFIX = "supd-"


class Mount:
    """One mounted hierarchy. `controllers` are those of v1; with cgroup2 they are no property of the mount."""

    __slots__ = ("controllers", "is_v2", "point", "root")

    def __init__(self, root: str, point: str, *, is_v2: bool, controllers: frozenset[str]) -> None:
        self.root = root
        self.point = point
        self.is_v2 = is_v2
        self.controllers = controllers

    def folder(self, path: str) -> str | None:
        """Where the cgroup `path`, as /proc/PID/cgroup tells it, is to be seen; None: not below this mount.

        A container often mounts only its own part (`root` is not `/`), and a process outside of our cgroup
        namespace has a path that begins with `/..`.
        """
        if path == "/.." or path.startswith("/../"):
            return None
        root = self.root.rstrip("/")
        if path.rstrip("/") == root:
            return self.point
        return self.point + path[len(root) :] if path.startswith(root + "/") else None


def parse_mounts(mountinfo: str) -> list[Mount]:
    """The cgroup hierarchies in the text of /proc/PID/mountinfo, in its order."""
    mounts: list[Mount] = []
    for line in mountinfo.splitlines():
        before, dash, after = line.partition(" - ")
        fields, filesystem = before.split(), after.split()
        if dash and len(fields) >= 5 and len(filesystem) >= 3 and filesystem[0] in ("cgroup", "cgroup2"):
            is_v2 = filesystem[0] == "cgroup2"
            controllers = frozenset() if is_v2 else frozenset(filesystem[2].split(","))
            mounts.append(Mount(_unescape(fields[3]), _unescape(fields[4]), is_v2=is_v2, controllers=controllers))
    return mounts


def _unescape(field: str) -> str:
    """Blanks and backslashes are octal in mountinfo."""
    for octal, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(octal, character)
    return field


def parse_memberships(text: str) -> dict[str, str]:
    """The text of /proc/PID/cgroup as controller → path; cgroup2 goes by the name ""."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon:
            paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def read_text(path: str) -> str:
    """The content of a small kernel file; "" where it cannot be read. Raises OSError of NOTHING_SEEN."""
    try:
        with open(path, "rb", buffering=0) as file:  # read every second: without buffers it takes half the time
            return os.fsdecode(file.readall())
    except OSError as exc:
        if exc.errno in NOTHING_SEEN:
            raise
        return ""


def group_name(incarnation: str) -> str:
    """The folder name of a runner's cgroup."""
    return _PREFIX + incarnation


def make_runner_cgroup(incarnation: str) -> str | None:
    """The path of a new cgroup2 group for one runner, below our own; None where we may not make one.

    No controller is switched on in it: it is there to find processes, so it works wherever its folder can be
    written, and the rule against processes in inner groups does not apply.
    """
    own = parse_memberships(read_text("/proc/self/cgroup")).get("")
    if own is None:
        return None
    for mount in parse_mounts(read_text("/proc/self/mountinfo")):
        base = mount.folder(own) if mount.is_v2 else None
        # Moving a process needs write access to the common ancestor too.
        if base is not None and os.access(f"{base}/cgroup.procs", os.W_OK):
            return _make(f"{base}/{group_name(incarnation)}")
    return None


def _make(path: str) -> str | None:
    try:
        os.mkdir(path, 0o755)
    except OSError:
        return None
    if read_text(f"{path}/cgroup.type").strip() == "domain":
        return path
    remove_cgroup(path)  # below a threaded group nobody can join
    return None


def join(path: str) -> bool:
    """Move this process into a group. What it starts from now on is in it too."""
    return _write(f"{path}/cgroup.procs", "0")


def leave(path: str) -> bool:
    """Move this process to the group above."""
    return _write(f"{os.path.dirname(path)}/cgroup.procs", "0")


def members(path: str) -> list[int]:
    """The pids in a group and in the groups below it (a worker may have made some)."""
    pids: list[int] = []
    for folder, _, _ in os.walk(path):
        # 0 stands for a process of another pid namespace.
        pids += [pid for pid in map(int, read_text(f"{folder}/cgroup.procs").split()) if pid]
    return pids


def kill_members(path: str) -> bool:
    """SIGKILL everything in a group at once, so that no fork can slip through (Linux 5.14)."""
    return _write(f"{path}/cgroup.kill", "1")


def remove_cgroup(path: str) -> bool:
    """Remove a group and those below it; False: a process is left in it. One that is gone is fine."""
    for folder, _, _ in os.walk(path, topdown=False):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


def _write(path: str, text: str) -> bool:
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
    except OSError:
        return False
    return True
