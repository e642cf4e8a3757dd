"""Where this user's files are: XDG's base directories and their traps, and the meeting point of supctl and supd.

Imports little, since every supctl starts by asking for the control socket.
"""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from protocol.errors import About, ConfigInvalid, Problem

MAX_SOCKET_PATH_BYTES = 107  # sun_path has 108 with its NUL, unix(7)


def default_control_path(environ: Mapping[str, str], uid: int) -> Path:
    """supd's socket in user mode: `$XDG_RUNTIME_DIR/supd/control.sock`, else `$TMPDIR/supd-UID/control.sock`.

    XDG_RUNTIME_DIR is often unset, or another user's, under batch systems, containers and su: then the fallback
    holds, with the uid in its name, so that users do not meet in one folder. TMPDIR is /tmp where it is unusable.
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and _is_own_folder(runtime, uid):
        return Path(runtime, "supd", "control.sock")
    temporary = environ.get("TMPDIR", "")
    is_usable = os.path.isabs(temporary) and os.path.isdir(temporary)
    return Path(temporary if is_usable else "/tmp", f"supd-{uid}", "control.sock")


def _is_own_folder(path: str, uid: int) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == uid


def xdg_folder(environ: Mapping[str, str], variable: str, below_home: str) -> Path:
    """The folder in an XDG variable, else `below_home` in the user's home.

    A relative path is ignored, as the XDG base directory specification says.
    """
    named = environ.get(variable, "")
    return Path(named) if os.path.isabs(named) else home(environ) / below_home


def home(environ: Mapping[str, str]) -> Path:
    """The user's home folder; `/` for a uid that has none."""
    named = environ.get("HOME", "")
    if os.path.isabs(named):
        return Path(named)
    import pwd  # seldom needed

    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir or "/")
    except KeyError:  # usual in containers
        return Path("/")


def host_name() -> str:
    """This machine's short host name, made fit to be a node's and a folder's name."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", os.uname().nodename.partition(".")[0]).strip("-_")[:63] or "localhost"


def socket_path_problem(path: Path) -> Problem | None:
    """What is wrong with the path of a unix socket: it may be too long for the kernel."""
    size = len(os.fsencode(path))
    if size <= MAX_SOCKET_PATH_BYTES:
        return None
    message = f"the control socket's path has {size} bytes, and a unix socket's at most {MAX_SOCKET_PATH_BYTES}"
    hint = 'name a shorter one in supd.toml, as in [listen] control = "/tmp/supd-me/control.sock"'
    return Problem("S212", "listen.control", str(path), message, hint, about=About(("listen", "control")))


_ANOTHER = "name another one in supd.toml, or by XDG_STATE_HOME and XDG_RUNTIME_DIR"
_OWN_FILES = {"lock", "control.sock"}
"""Of these, one is in every folder that supd has used."""


def ensure_private_dir(path: Path) -> None:
    """Make a folder, 0700, with all above it, or see that the one there is private; raises ConfigInvalid if not.

    A symbolic link counts as its target where we (or root) made it. What exists is never changed.
    """
    flaw = _make(path) or _not_private(path)
    if flaw:
        message, hint = flaw
        raise ConfigInvalid(str(path), [Problem("S401", "", "", f"{path} {message}", hint)])


def _make(path: Path) -> tuple[str, str] | None:
    missing = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
    for folder in reversed(missing):
        try:
            folder.mkdir(0o700)
        except FileExistsError:
            continue  # another process was as quick
        except OSError as exc:
            return f"cannot be made: {exc.strerror}", _ANOTHER
    return None


def _not_private(path: Path) -> tuple[str, str] | None:
    own = {os.getuid(), 0}
    try:
        link, status = os.lstat(path), os.stat(path)
    except OSError as exc:
        return f"cannot be used: {exc.strerror}", _ANOTHER
    if link.st_uid not in own:
        return f"belongs to uid {link.st_uid}", _ANOTHER
    if not stat.S_ISDIR(status.st_mode):
        return "is a file, and no folder", _ANOTHER
    if status.st_uid != os.getuid():
        return f"belongs to uid {status.st_uid}", _ANOTHER
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        return f"is open to others (mode {mode:04o})", f"chmod 700 {path}" if _is_supds(path) else _ANOTHER
    return None


def _is_supds(path: Path) -> bool:
    """Whether nobody else has put anything there."""
    names = set(os.listdir(path))
    return not names or bool(names & _OWN_FILES)
