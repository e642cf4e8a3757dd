"""Where a supd of a test may have to live: as an ordinary user, or where control groups are out of reach."""

import contextlib
import errno
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import protocol
from supervisor.shell.cgroup import Mount, parse_memberships, parse_mounts
from tests.e2e.supd import wait_for

NOBODY = 65534

CHECKOUT = Path(protocol.__file__).parent.parent


def as_ordinary_user(folder: Path) -> tuple[str, ...]:
    """What to put in front of a command to run it without any privilege; `folder` will belong to that user.

    An ordinary user's tests need nothing for it. For root the interpreter, its packages and the checkout may be below
    folders that only root may enter: in a mount namespace of its own such a folder is covered by an empty one that
    holds just these.
    """
    if os.geteuid() != 0:
        return ()
    os.chown(folder, NOBODY, NOBODY)
    needed = {Path(sys.prefix), Path(sys.base_prefix), CHECKOUT}
    closed: defaultdict[Path, list[Path]] = defaultdict(list)
    for path in needed:
        barred = [parent for parent in path.parents if not parent.stat().st_mode & 0o001]
        if barred:
            closed[barred[-1]].append(path)
    commands = [f'mount -t tmpfs -o mode=755 tmpfs "{folder}/keep"'] if closed else []
    for cover, paths in closed.items():
        for number, path in enumerate(paths):
            commands += [f'mkdir "{folder}/keep/{number}"', f'mount --bind "{path}" "{folder}/keep/{number}"']
        commands.append(f'mount -t tmpfs -o mode=755 tmpfs "{cover}"')
        for number, path in enumerate(paths):
            commands += [f'mkdir -p "{path}"', f'mount --bind "{folder}/keep/{number}" "{path}"']
    (folder / "keep").mkdir()
    user = f"setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups --no-new-privs --inh-caps=-all"
    return _in_mount_namespace(commands, user)


def without_cgroups() -> tuple[str, ...]:
    """What to put in front of a command so that it sees control groups, and cannot change them."""
    remount = """awk '$3 ~ /^cgroup2?$/ { print $2 }' /proc/mounts | while read -r place; do
        mount -o remount,bind,ro "$place"
    done"""
    return _in_mount_namespace([remount])


@contextlib.contextmanager
def with_cpu_quota(cpus: float) -> Iterator[tuple[str, ...]]:
    """What to put in front of a command so that it may use so many CPUs' time, by a cgroup of v1 or v2 of its own.

    Skips the test where none can be made: it takes root, and in v2 a group that has no processes of its own.
    """
    own = parse_memberships(Path("/proc/self/cgroup").read_text())
    mounts = [m for m in parse_mounts(Path("/proc/self/mountinfo").read_text()) if m.is_v2 or "cpu" in m.controllers]
    group = next(filter(None, (_quota_group(mount, own, cpus) for mount in mounts)), None)
    if group is None:
        pytest.skip("no CPU controller lets us make a group with a quota")
    try:
        yield "sh", "-euc", f'echo $$ > "{group}/cgroup.procs"; exec "$@"', "sh"
    finally:
        wait_for("the last process to leave the group", lambda: _remove(group))


def _remove(group: Path) -> bool:
    """Whether it is gone: not while a process that has ended is still counted."""
    try:
        group.rmdir()
    except OSError as exc:
        if exc.errno != errno.EBUSY:
            raise
        return False
    return True


def _quota_group(mount: Mount, own: dict[str, str], cpus: float) -> Path | None:
    above = mount.folder(own.get("" if mount.is_v2 else "cpu", ""))
    if above is None:
        return None
    group = Path(above, f"supd-test-{os.getpid()}")
    try:
        if mount.is_v2:
            Path(above, "cgroup.subtree_control").write_text("+cpu")
        group.mkdir()
    except OSError:
        return None
    try:
        name, period_us = ("cpu.max" if mount.is_v2 else "cpu.cfs_quota_us"), 100_000
        (group / name).write_text(f"{int(cpus * period_us)}" + (f" {period_us}" if mount.is_v2 else ""))
    except OSError:
        group.rmdir()
        return None
    return group


def _in_mount_namespace(commands: list[str], then: str = "") -> tuple[str, ...]:
    script = "\n".join([*commands, f'exec {then} "$@"'])
    return ("unshare", "--mount", "--propagation", "private", "sh", "-euc", script, "sh")
