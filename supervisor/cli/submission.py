"""What `start` and `validate` hand to supd: the job file, and the place they were called in."""

import os
import resource
from collections.abc import Iterable, Sequence

from protocol.errors import Refused
from protocol.exit_code import ExitCode
from protocol.job import LIMITS
from protocol.messages.control import COLUMNS_MAX, Start
from supervisor.cli.context import Context
from supervisor.cli.log_lines import safe
from supervisor.cli.screen import Screen
from supervisor.shell.pythons import find_python


def request_for(
    file: str,
    context: Context,
    *,
    check_only: bool,
    settings: Sequence[str] = (),
    name: str | None = None,
    args: Sequence[str] = (),
    replace: bool = False,
    allow_mixed: bool = False,
) -> Start:
    """What supd must know of the place this was called in. Raises Refused where the file cannot be read."""
    return Start(
        request_id=os.urandom(16).hex(),
        job_file=read_file(file),
        source=file,
        folder=os.path.realpath(os.path.dirname(file) or "."),
        python=find_python(context.environ),
        env=dict(os.environb),
        limits={name: resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[0] for name in LIMITS},
        umask=_umask(),
        check_only=check_only,
        settings=tuple(settings),
        name=name,
        args=tuple(args),
        replace=replace,
        allow_mixed=allow_mixed,
        columns=min(context.screen.err.columns or 120, COLUMNS_MAX),
        is_ascii=not context.screen.err.is_unicode,
    )


def tell_done(screen: Screen, text: str, notes: Iterable[str], warnings: Iterable[str]) -> None:
    """That a job is taken, what is worth telling of it, and what may not be meant."""
    screen.tell(f"{screen.err.paint('✓', 'green')} {text}")
    for note in notes:
        screen.tell(f"  {safe(note)}")
    for warning in warnings:
        screen.tell("\n" + "\n".join(map(safe, warning.split("\n"))))


def read_file(file: str) -> bytes:
    """The bytes of a job file; of one that is too large so many that this is seen. Raises Refused."""
    from protocol.toml_text import MAX_FILE_BYTES

    try:
        with open(file, "rb") as stream:
            return stream.read(MAX_FILE_BYTES + 1)
    except OSError as exc:
        hint = "give the path of a job file (docs/job-file.md)"
        raise Refused(
            "C011", f"cannot read {file}: {exc.strerror or exc}", hint=hint, exit_code=ExitCode.INVALID
        ) from None


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
