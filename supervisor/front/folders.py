"""Where suprun keeps what it needs while it runs: nothing of it is left at its end."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from protocol.errors import ConfigInvalid, Refused
from supervisor.shell.files import read_small
from supervisor.shell.paths import ensure_private_dir

IN_MEMORY = Path("/dev/shm")
PREFIX = "suprun-"

HELD = "held"
"""In each folder: a file that its suprun has locked."""

OUTPUT = "output"
"""In the folder for the state: a link to the one for output."""

RUNNERS = "runners"
"""In the folder for the state: the files of runners. In the one for output: a link to it."""

LOCK_MAX_BYTES = 4096

ROOM_BYTES = 16 << 20
"""What a journal, and what a runner keeps of its ranks, may take."""


def remove(state: Path, logs: Path) -> None:
    """At the end of suprun. What one has left that was killed with all that it had goes as well: Slurm does so."""
    for folder in (logs, state):
        shutil.rmtree(folder, ignore_errors=True)
    for other in _all_there_are():
        if _is_deserted(other):
            for lock in _locks(other):
                _sweep(lock)
            with contextlib.suppress(OSError):
                shutil.rmtree(os.readlink(other / OUTPUT), ignore_errors=True)
            shutil.rmtree(other, ignore_errors=True)


def make_folders(logs: Path | None) -> tuple[Path, Path]:
    """New ones, 0700, for state and output. State is in memory where there is some, so that nothing waits for a disk;
    output never is. It goes to `logs`, which is made by its writer; None: to a temporary folder. Raises Refused, and
    OSError; then none is left."""
    name = f"{PREFIX}{os.urandom(4).hex()}"
    output = _ours(_temporary()) / f"{name}-output" if logs is None else logs
    state = _make_state(name, output)
    if logs is None:
        try:
            _make(output, RUNNERS, state / RUNNERS)
        except BaseException:
            shutil.rmtree(state, ignore_errors=True)
            raise
    return state, output


def _make_state(name: str, output: Path) -> Path:
    if _has_room(IN_MEMORY):
        with contextlib.suppress(Refused, OSError):
            return _make(_ours(IN_MEMORY) / name, OUTPUT, output)
    return _make(_ours(_temporary()) / name, OUTPUT, output)


def _make(folder: Path, link: str, target: Path) -> Path:
    """A folder with a link in it. It has its name once it is locked: so nobody takes it for a deserted one."""
    new = folder.with_name(f"new-{folder.name}")
    new.mkdir(0o700)
    try:
        (new / link).symlink_to(target)
        _hold(new / HELD)
        return new.rename(folder)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _hold(file: Path) -> None:
    """Make it and lock it, to the end of this process. Where the file system has no locks it is not there, which counts
    as locked. Raises OSError."""
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)  # NFS locks only what can be written
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
    except OSError:
        os.close(fd)
        file.unlink()


def _all_there_are() -> list[Path]:
    """Those of this user's supruns, for state and for output, each of which may be there without the other: one file
    system outlives the machine's restart, or a container, and the other does not."""
    found: list[Path] = []
    for base in filter(Path.is_dir, (IN_MEMORY, _temporary())):
        with contextlib.suppress(Refused):
            found += _ours(base).glob(f"{PREFIX}*")
    return found


def _ours(base: Path) -> Path:
    """The folder there of all that this user's supruns have. Raises Refused where it is not private."""
    own = base / f"supd-{os.getuid()}"
    try:
        ensure_private_dir(own)
    except ConfigInvalid as exc:
        hint = "export TMPDIR=FOLDER, one of your own"
        raise Refused("C014", exc.problems[0].message, hint=hint) from None
    return own


def _temporary() -> Path:
    return Path(tempfile.gettempdir())


def _is_deserted(folder: Path) -> bool:
    """Whether a suprun had it that has ended, and so have its guards: they hold these locks."""
    return _is_free(folder / HELD) and all(map(_is_free, _locks(folder)))


def _locks(folder: Path) -> list[Path]:
    """Of its runners and their guards."""
    return [*(folder / RUNNERS).glob("*.lock")]


def _is_free(locked: Path) -> bool:
    """Whether nobody holds a lock on it; what cannot be looked at may be locked."""
    try:
        fd = os.open(locked, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _sweep(lock: Path) -> None:
    """End what is left of a dead runner, and remove its cgroup, which its lock names."""
    from supervisor.shell import cgroup, tree  # only here

    group = (read_small(lock, LOCK_MAX_BYTES) or b"").decode(errors="replace")
    is_sound = os.path.basename(group) == cgroup.group_name(lock.stem)
    tree.sweep(lock.stem, group if is_sound else None)


def _has_room(base: Path) -> bool:
    try:
        room = os.statvfs(base)
    except OSError:
        return False
    return os.access(base, os.W_OK) and room.f_bavail * room.f_frsize >= ROOM_BYTES
