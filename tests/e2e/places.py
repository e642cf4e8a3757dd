"""Where a supd of a test may have to live: as an ordinary user, or where control groups are out of reach."""

import os
import sys
from collections import defaultdict
from pathlib import Path

import protocol

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


def _in_mount_namespace(commands: list[str], then: str = "") -> tuple[str, ...]:
    script = "\n".join([*commands, f'exec {then} "$@"'])
    return ("unshare", "--mount", "--propagation", "private", "sh", "-euc", script, "sh")
