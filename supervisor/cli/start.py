"""Start a job; return when every rank of generation 0 has started.

The job runs on without supctl: Ctrl-C only ends the looking on. Ends with 0 when it has started (with --follow:
when it has succeeded), 4 if it failed, 5 if it was stopped, 78 if the job file has problems.
"""

import argparse
import os
import resource
import sys
import time
from collections.abc import Mapping

from protocol.errors import Refused
from protocol.messages.control import Done, EventRecord, LogSelection, RunStatus, Start, Watch
from supervisor.cli.client import ConnectionLost, Unavailable
from supervisor.cli.context import Context, Detached
from supervisor.cli.exit_code import ExitCode
from supervisor.cli.follow import follow, outcome_code, tell_outcome
from supervisor.cli.log_lines import safe
from supervisor.cli.screen import Screen
from supervisor.shell.clock import boot_s

COMEBACK_S = 10.0
"""A supd that went away before it had answered is given this long to come back."""
RETRY_S = 0.1
MAX_FILE_BYTES = 1024 * 1024
LIMITS = ("nofile", "core", "memlock", "stack")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl start`'s own arguments."""
    parser.add_argument("file", metavar="FILE", help="job file (docs/job-file.md)")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--follow", action="store_true", help="show the output until the run ends")
    mode.add_argument("--detach", action="store_true", help="return as soon as supd has accepted the run")
    mode.add_argument("--dry-run", action="store_true", help="let supd check the job; start nothing")


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Submit the job, then look on for as long as was asked for."""
    screen = context.screen
    request = request_for(arguments.file, context.environ, check_only=arguments.dry_run)
    done = _submit(context, request)
    if arguments.dry_run:
        _tell_accepted(screen, f"{arguments.file} is valid; nothing was started", done)
        return ExitCode.OK
    _tell_accepted(screen, f"accepted run {done.run}", done)
    if screen.is_quiet and not arguments.follow:
        screen.print(done.run)
    if arguments.detach:
        return ExitCode.OK
    progress = Progress(screen, tells_incidents=not arguments.follow)
    if arguments.follow:
        return _follow_output(context, done.run, progress)
    status = follow(
        context,
        done.run,
        lambda status: status.has_started,
        on_change=progress.show,
        after_interrupt=_detached(done.run, "starting"),
    )
    assert status is not None, "only a deadline gives no status"
    if status.is_final:
        tell_outcome(screen, status)
        return outcome_code(status)
    screen.tell(f"{status.job} is running   → supctl logs -f {status.job}")
    return ExitCode.OK


class Progress:
    """Tells how a start gets on, a line a change; incidents only where nobody else tells them."""

    def __init__(self, screen: Screen, *, tells_incidents: bool) -> None:
        self._screen = screen
        self._tells_incidents = tells_incidents
        self._told: set[str] = set()
        self._incident = 0

    def show(self, status: RunStatus) -> None:
        """Called at every snapshot."""
        if self._tells_incidents and not status.is_final:
            self._tell_incident(status)
        if status.ranks and (status.has_started or status.ranks_running == status.ranks):
            self._once(f"spawned {status.ranks}/{status.ranks} ranks")
        if status.has_started:
            self._once("started")

    def _tell_incident(self, status: RunStatus) -> None:
        if status.incident is not None and status.incident.number > self._incident:
            self._incident = status.incident.number
            self._screen.tell(f"{self._screen.err.paint('✗', 'red')} {safe(status.incident.summary)}")

    def _once(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._screen.tell(f"{self._screen.err.paint('✓', 'green')} {what}")


def request_for(file: str, environ: Mapping[str, str], *, check_only: bool) -> Start:
    """What supd must know of the place this was called in. Raises Refused where the file cannot be read."""
    return Start(
        request_id=os.urandom(16).hex(),
        job_file=read_file(file),
        source=file,
        folder=os.path.realpath(os.path.dirname(file) or "."),
        python=find_python(environ),
        env=dict(os.environb),
        limits={name: resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[0] for name in LIMITS},
        umask=_umask(),
        check_only=check_only,
    )


def read_file(file: str) -> bytes:
    """The bytes of a job file. Raises Refused where it cannot be read or is no job file by its size."""
    hint = "give the path of a job file (docs/job-file.md)"
    try:
        with open(file, "rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise Refused(
            "C011", f"cannot read {file}: {exc.strerror or exc}", hint=hint, exit_code=ExitCode.INVALID
        ) from None
    if len(data) > MAX_FILE_BYTES:
        raise Refused("C011", f"{file} is larger than any job file (1 MiB)", hint=hint, exit_code=ExitCode.INVALID)
    return data


def find_python(environ: Mapping[str, str]) -> str:
    """The submitter's interpreter: VIRTUAL_ENV's, else the first `python3` or `python` on PATH; "" for none.

    The environment that supd itself is in comes last: it is often on PATH for supctl's sake, and has no torch.
    """
    active = environ.get("VIRTUAL_ENV")
    own = os.path.dirname(sys.executable)
    folders = environ.get("PATH", os.defpath).split(os.pathsep)
    folders.sort(key=lambda folder: os.path.abspath(folder) == own and sys.prefix != sys.base_prefix)
    for folder in [os.path.join(active, "bin"), *folders] if active else folders:
        for name in ("python3", "python"):
            path = os.path.abspath(os.path.join(folder, name))
            if os.path.isfile(path) and os.access(path, os.X_OK):
                return path
    return ""


def _submit(context: Context, request: Start) -> Done:
    """Ask once more where supd went away before it answered: the request's id makes that safe."""
    try:
        return context.client.ask(request, Done)
    except ConnectionLost as lost:
        context.screen.tell("supd went away before it answered; asking again when it is back")
        until_s = boot_s() + COMEBACK_S
        while True:
            try:
                return context.client.ask(request, Done)
            except ConnectionLost:
                raise
            except Unavailable:
                if boot_s() >= until_s:
                    raise lost from None
            time.sleep(RETRY_S)  # noqa: TID251  # there is nothing to wait on: the socket is not there


def _follow_output(context: Context, run: str, progress: Progress) -> int:
    from supervisor.cli.story import Story, play

    def wants_event(event: EventRecord) -> bool:
        return not event.kind.startswith("incident.")  # told in full

    status = context.client.status(run)
    story = Story(context.screen, status, wants_event, incidents_after=0)
    request = Watch(
        run=run,
        follow=True,
        events=True,
        snapshots=True,
        logs=LogSelection(all_generations=True, tail_lines=None),
    )
    try:
        play(context, story, request, on_reply=progress.show)
    except KeyboardInterrupt:
        raise Detached(_detached(run, "running")) from None
    tell_outcome(context.screen, story.run)
    return outcome_code(story.run)


def _tell_accepted(screen: Screen, text: str, done: Done) -> None:
    screen.tell(f"{screen.err.paint('✓', 'green')} {text}")
    for note in done.notes:
        screen.tell(f"  {safe(note)}")


def _detached(run: str, doing: str) -> str:
    return f"detached; job keeps {doing}   → supctl logs -f {run}"


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
