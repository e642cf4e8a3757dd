"""`suprun`: torchrun's command line, run by supd's parts in this very process."""

import errno
import gc
import os
import shutil
import sys
from collections.abc import Iterator, Sequence

from protocol.errors import Refused, SupdError
from protocol.exit_code import ExitCode
from protocol.text import one_line, sendable
from supervisor.shell.version import VERSION
from supervisor.suprun.line import NOT_UTF8, read_line
from supervisor.suprun.plan import How, LaunchPlan, Planned, plan_of

HINTS = {
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "allow more open files: ulimit -n 1024"),
    **dict.fromkeys((errno.EAGAIN, errno.ENOMEM), "end other processes, or allow more: ulimit -u"),
}
"""By the number of what the system has refused."""


def main() -> int:
    """The process; returns what it ends with."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who called us: `>&-`; what is opened next would get its number
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: SIM115  # to the end of the process
    try:
        return run(sys.argv[1:])
    except SupdError as exc:
        return complain(exc)
    except BrokenPipeError:  # whoever reads the help
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.PIPE_CLOSED
    except OSError as exc:
        hint = HINTS.get(exc.errno or 0, "see that the temporary folder (TMPDIR) can be written to, and has room")
        return complain(Refused("C014", f"{exc.filename or 'the system'}: {exc.strerror or exc}", hint=hint))
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def run(words: Sequence[str]) -> int:
    """One call of suprun. Raises SupdError."""
    line = read_line(words, os.environ)
    if line.flags.help:
        from supervisor.suprun.help import help_text  # only here

        print(help_text(shutil.get_terminal_size().columns))
        return ExitCode.OK
    if line.flags.version:
        print(f"suprun {VERSION}")
        return ExitCode.OK
    planned = plan_of(line, os.environ)
    if line.flags.print_job:
        from supervisor.suprun.job import job_toml  # only here

        print(job_toml(planned.plan), end="")
        _tell(planned)
        return ExitCode.OK
    _tell(planned)
    return _launch(planned.plan)


def _launch(plan: LaunchPlan) -> int:
    """Raises SupdError."""
    gc.disable()  # nothing of what is loaded is garbage
    from supervisor.front import ahead, log_dir  # only here

    _check_script(plan)
    for note in _unserved(plan):
        print(f"suprun: {note}", file=sys.stderr)
    if plan.hides_slurm:
        for name in [name for name in os.environ if name.startswith("SLURM")]:
            del os.environ[name]  # what ranks get is the environment of their suprun
    kept = log_dir.make(plan) if plan.log_dir is not None else None
    begun = ahead.begin(None if kept is None else log_dir.hidden(kept))
    try:
        from supervisor.front.launch import launch  # it takes long to load: the runner gets ready at the same time

        gc.freeze()
        gc.enable()
        return launch(plan, begun, kept)
    finally:
        begun.remove()


def _unserved(plan: LaunchPlan) -> Iterator[str]:
    """What is asked for, and cannot be."""
    if plan.log_dir is None and (plan.stdout_filters or plan.stderr_filters):
        yield "--duplicate-stdout-filters, --duplicate-stderr-filters: no effect without --log-dir"
    if plan.log_dir is None and not plan.redirects.is_empty and plan.redirects != plan.tee:
        yield "--redirects without --log-dir: what it names is neither shown nor kept"


def _check_script(plan: LaunchPlan) -> None:
    """Raises Refused where the script is not there, and where a word cannot be sent to other nodes."""
    try:
        folder = os.getcwd()
    except OSError as exc:
        message = f"the current folder is gone: {exc.strerror}"
        raise Refused("C014", message, hint="cd to one that is there", exit_code=ExitCode.INVALID) from None
    for word in (plan.program, *plan.args, plan.python, plan.role, folder):
        if sendable(word) != word:
            message = f"{word!r} is not UTF-8, and the nodes speak nothing else"
            raise Refused(NOT_UTF8, message, hint="use a name that is", exit_code=ExitCode.INVALID)
    if plan.how is How.SCRIPT and not os.path.isfile(plan.program):
        what = "is not there"
        if os.path.exists(plan.program):
            what = "is a folder, and no script" if os.path.isdir(plan.program) else "is no file that each rank can read"
        message = f"{plan.program} {what} (in {folder})"
        raise Refused("C030", message, hint="suprun [OPTIONS] SCRIPT [ARG …]", exit_code=ExitCode.INVALID)


def complain(error: SupdError) -> int:
    """Tell an error and how to mend it. Returns what suprun ends with."""
    print(f"suprun: error[{error.code}]: {error}", file=sys.stderr)
    if error.hint:
        print(f"  = {error.hint}", file=sys.stderr)
    return int(error.exit_code) if isinstance(error, Refused) else ExitCode.FAILED


def _tell(planned: Planned) -> None:
    for note in planned.notes:
        print(f"suprun: {one_line(note)}", file=sys.stderr)
