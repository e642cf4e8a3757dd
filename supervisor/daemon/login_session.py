"""Whether supd was started inside a login session, and would be killed at its end, nohup or not."""

import glob
import os

import structlog

from supervisor.daemon.accounts import user_name
from supervisor.shell.cgroup import parse_memberships, read_text

log = structlog.get_logger()

_FOLDERS = ("usr/lib", "usr/local/lib", "run", "etc")  # each goes before those on its left
_YES = ("1", "yes", "y", "true", "t", "on")  # systemd.syntax(7)


def tell_of_login_session() -> None:
    """Warn where logging out is known to kill supd and all ranks; where only the build of systemd knows, say so."""
    session = login_session()
    is_killed = kills_at_logout(user_name(os.geteuid())) if session else False
    if is_killed:
        log.warning("login_session_found", scope=session, hint="it ends with your session: docs/operations.md")
    elif is_killed is None:
        log.info("login_session_found", scope=session, hint="it may end with your session: docs/operations.md")


def login_session(proc: str = "/proc") -> str:
    """The scope of the login session that this process is in, like "session-3.scope" (systemd-logind(8)); else ""."""
    for path in parse_memberships(read_text(f"{proc}/self/cgroup")).values():
        for name in path.split("/"):
            if name.startswith("session-") and name.endswith(".scope"):
                return name
    return ""


def kills_at_logout(user: str, root: str = "/") -> bool | None:
    """Whether the end of a session kills what its user runs in it (logind.conf(5)); None: no file says so.

    Distributions build systemd with one default or the other. Users are excluded by name: root, where no others are.
    """
    settings = _settings(root)
    only = settings.get("KillOnlyUsers", "").split()
    if user in settings.get("KillExcludeUsers", "root").split() or (only and user not in only):
        return False
    value = settings.get("KillUserProcesses", "")
    return value.lower() in _YES if value else None


def _settings(root: str) -> dict[str, str]:
    """What logind.conf and its drop-ins set: of two files of one name the one counts that goes before."""
    folders = [os.path.join(root, folder, "systemd") for folder in _FOLDERS]
    main = [path for folder in folders if os.path.exists(path := f"{folder}/logind.conf")][-1:]
    drop_ins = {
        os.path.basename(path): path for f in folders for path in sorted(glob.glob(f"{f}/logind.conf.d/*.conf"))
    }
    settings: dict[str, str] = {}
    for path in [*main, *(drop_ins[name] for name in sorted(drop_ins))]:
        lines = (line.partition("=") for line in read_text(path).splitlines())
        settings |= {key.strip(): value.strip() for key, equals, value in lines if equals}
    return settings
