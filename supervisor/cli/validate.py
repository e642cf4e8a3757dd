"""Check a job file: its keys here, and the rest (script, interpreter, folders) by supd, where one answers.

Starts nothing. Ends with 78 if there are problems; all of them are told at once. What is sound and may not be meant
is a warning: with --strict, 6 if there are any.
"""

import argparse
from collections.abc import Sequence

from protocol.errors import Problem, SupdError
from protocol.exit_code import ExitCode
from protocol.messages.control import Done, Setting
from supervisor.cli.arguments import add_changes, add_json
from supervisor.cli.client import Unavailable
from supervisor.cli.context import Context
from supervisor.cli.log_lines import safe
from supervisor.cli.submission import request_for, tell_done


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl validate`'s own arguments."""
    parser.add_argument("file", metavar="FILE", help="job file (docs/job-file.md)")
    add_changes(parser)
    parser.add_argument("--local", action="store_true", help="only the file; do not ask supd")
    parser.add_argument("--strict", action="store_true", help="exit 6 if there are warnings")
    parser.add_argument("--show-config", action="store_true", help="every key in effect, and who gave it")
    add_json(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Check the file, then let supd check the job."""
    from protocol.job_file import read_job
    from protocol.snippets import Canvas

    file, settings, name = arguments.file, arguments.settings, arguments.name
    request = request_for(file, context, check_only=True, settings=settings, name=name)
    done = Done()
    remarks: tuple[str, ...] = ()
    try:
        canvas = Canvas(request.columns, request.is_ascii)
        job = read_job(request.job_file, file, settings=settings, name=name, canvas=canvas)
        if not arguments.local:
            done = context.client.ask(request, Done)
    except Unavailable as exc:
        remarks = (f"only the file was checked: {exc}",)
    except SupdError as exc:
        if not arguments.json or not exc.problems:
            raise
        _print_document(context, file, exc.problems, (), None, ())
        return ExitCode.INVALID
    config: Sequence[Setting] | None = None
    if arguments.show_config:
        from protocol.effective import effective

        config = effective(job.spec, folder=request.folder, python=request.python, limits=request.limits)
    if arguments.json:
        _print_document(context, file, (), job.warnings, config, [*done.warnings, *remarks])
    else:
        warnings = (*map(str, job.warnings), *done.warnings)
        tell_done(context.screen, f"{file} is valid", (*done.notes, *remarks), warnings)
        for setting in config or ():
            origin = {"file": file, "submitter": "the submitter"}.get(setting.origin, setting.origin)
            context.screen.print(f"{setting.key} = {setting.value}   # {safe(origin)}")
    if not arguments.strict or not (job.warnings or done.warnings):
        return ExitCode.OK
    context.screen.next_step("mend what the warnings say, or check without --strict")
    return ExitCode.FINDINGS


def _print_document(
    context: Context,
    file: str,
    problems: Sequence[Problem],
    findings: Sequence[Problem],
    config: Sequence[Setting] | None,
    warnings: Sequence[str],
) -> None:
    from supervisor.cli import documents

    data = {
        "file": file,
        "valid": not problems,
        "problems": problems,
        "findings": findings,
        "settings": config,
    }
    context.screen.print(documents.document("validate", data, warnings))
