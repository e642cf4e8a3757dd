"""What this node would run of a job on several nodes: told with its offer, and compared before they launch together.

Only files are looked at. Nothing is run or imported: a Python that starts, and torch in it, would take seconds.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from io import BufferedReader
from pathlib import Path

from msgspec.json import encode

from protocol.effective import effective
from protocol.errors import Refused
from protocol.job import Job
from protocol.ranks import device_environment, interpreter
from protocol.text import one_line
from supervisor.shell.files import open_regular, read_small
from supervisor.shell.program import NoProgram, find_program

DIGITS = 12
"""Of a SHA-256, as they are shown: 48 bits tell files apart that nobody has made to be alike."""

WHOLE_MAX_BYTES = 64 * 1024 * 1024
"""A script above this, which has data in it, is told by its size and its first MiB."""
_HEAD_BYTES = 1024 * 1024

_CFG_MAX_BYTES = 64 * 1024
_NONE = "none"

_VERSION = re.compile(r"python(3\.[0-9]+)")
_TORCH = re.compile(r"torch-(.+?)(?:-py3\.[0-9]+)?\.(?:dist|egg)-info")


class Digests:
    """Looks at the files of one job. What has not changed since is not read again, for a restart waits for this."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._environ = device_environment(job, os.environb)
        self._seen: dict[str, tuple[tuple[int, int], str]] = {}  # path -> (its mtime and size, what was found then)
        self._settings = ""

    def look(self) -> dict[str, str]:
        """What the nodes of a job must have in common, as of now; blocks on the disk.

        Raises Refused where the script or its interpreter is not there.
        """
        job, run = self._job, self._job.spec.run
        self._settings = self._settings or _settings(job)
        found = {"job": self._settings, "script": _short(b"")}
        if run.script:
            found["script"] = self._script(os.path.join(job.submitter.folder, run.script))
        if run.command:
            return {**found, "python": _NONE, "torch": _NONE}
        python = self._interpreter()
        config = _config(python)
        name = os.path.basename(os.path.realpath(python))
        version = config.get("version") or config.get("version_info", "")
        about = ", ".join(filter(None, (name, version)))
        torch = self._torch(python, name, config)
        return {**found, "python": one_line(f"{python} ({about})"), "torch": one_line(torch)}

    def _script(self, path: str) -> str:
        try:
            with open_regular(Path(path)) as file:
                status = os.fstat(file.fileno())
                return self._kept(path, status, partial(_content, file, status.st_size))
        except OSError as exc:
            raise _missing(f"cannot read {path}: {exc.strerror or exc}") from None

    def _interpreter(self) -> str:
        """The path of the interpreter; of one that is searched, and not found, the name: its launch will tell."""
        folder = self._job.submitter.folder
        name = interpreter(self._job.spec, folder, self._job.submitter.python)
        search = self._environ.get("PATH", os.defpath)
        try:
            found = os.path.join(folder, os.fsdecode(find_program(os.fsencode(name), os.fsencode(search), b"/")))
        except NoProgram:
            return name
        if not os.access(found, os.X_OK):
            raise _missing(f"no interpreter {found}")
        return found

    def _torch(self, python: str, name: str, config: Mapping[str, str]) -> str:
        """The version of the first torch that this interpreter would find."""
        version = _VERSION.match(name) or _VERSION.match("python" + config.get("version_info", ""))
        for folder in _folders(python, version[1] if version else "3*", config, self._environ):
            try:
                found = self._kept(folder, os.stat(folder), partial(_torch_in, folder))
            except OSError:
                continue
            if found:
                return found
        return _NONE

    def _kept(self, path: str, status: os.stat_result, find: Callable[[], str]) -> str:
        """What `find` found when the file or folder was as it is now."""
        state = status.st_mtime_ns, status.st_size
        kept = self._seen.get(path)
        if kept is None or kept[0] != state:
            kept = self._seen[path] = state, find()
        return kept[1]


def _settings(job: Job) -> str:
    """Of everything that is in effect, secrets masked."""
    given = job.submitter
    return _short(encode(effective(job.spec, folder=given.folder, python=given.python, limits=given.limits)))


def _content(file: BufferedReader, size: int) -> str:
    if size > WHOLE_MAX_BYTES:
        return _short(b"%d:" % size + file.read(_HEAD_BYTES))
    return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]


def _missing(message: str) -> Refused:
    return Refused("F209", message, hint="a job on several nodes needs its files on all of them, at the same paths")


# --- where an interpreter looks ----------------------------------------------------------------------------------


def _config(python: str) -> dict[str, str]:
    """pyvenv.cfg of the environment that this interpreter is the one of (PEP 405); {} for none."""
    place = os.path.dirname(python)
    for folder in (place, os.path.dirname(place)):
        content = read_small(Path(folder, "pyvenv.cfg"), _CFG_MAX_BYTES)
        if content is not None:
            pairs = (line.partition("=") for line in content.decode(errors="replace").splitlines())
            return {key.strip().lower(): value.strip() for key, _, value in pairs}
    return {}


def _folders(python: str, version: str, config: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[str]:
    """Folders of modules in about the order in which this interpreter would search them (documentation of `site`)."""
    yield from filter(os.path.isabs, environ.get("PYTHONPATH", "").split(":"))
    prefix = os.path.dirname(os.path.dirname(python))
    is_own_only = bool(config) and config.get("include-system-site-packages", "").lower() != "true"
    if config:
        yield from _below(prefix, version)
    if is_own_only:
        return
    base = os.path.dirname(os.path.dirname(os.path.realpath(python)))
    user = environ.get("PYTHONUSERBASE") or os.path.join(environ.get("HOME", "/"), ".local")
    places = [] if environ.get("PYTHONNOUSERSITE") else [user]
    for place in dict.fromkeys([*places, "/usr/local", prefix, base]):
        yield from _below(place, version)


def _below(prefix: str, version: str) -> Iterator[str]:
    for lib in ("lib", "lib64"):
        for place in sorted(Path(prefix, lib).glob(f"python{version}")):
            yield str(place / "site-packages")
            yield str(place / "dist-packages")  # Debian's
    yield os.path.join(prefix, "lib", "python3", "dist-packages")


def _torch_in(folder: str) -> str:
    """The version of torch by the name of its metadata; "" where there is none."""
    with os.scandir(folder) as entries:
        found = [match[1] for entry in entries if (match := _TORCH.fullmatch(entry.name))]
    return max(found, default="")
