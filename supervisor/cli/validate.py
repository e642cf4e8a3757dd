"""Check a job file: its keys here, and the rest (script, interpreter, folders) by supd, where one answers.

Starts nothing. Ends with 78 if there are problems; all of them are told at once.
"""

import argparse

from protocol.errors import JobInvalid
from protocol.messages.control import Done
from supervisor.cli.arguments import add_json
from supervisor.cli.client import Unavailable
from supervisor.cli.context import Context
from supervisor.cli.exit_code import ExitCode
from supervisor.cli.log_lines import safe
from supervisor.cli.start import request_for


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl validate`'s own arguments."""
    parser.add_argument("file", metavar="FILE", help="job file (docs/job-file.md)")
    add_json(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Check the file, then let supd check the job."""
    from protocol.job import parse_job

    request = request_for(arguments.file, context.environ, check_only=True)
    try:
        parse_job(request.job_file, arguments.file)
    except JobInvalid as exc:
        if not arguments.json:
            raise
        _print_document(context, arguments.file, exc, [])
        return ExitCode.INVALID
    warnings = []
    notes: tuple[str, ...] = ()
    try:
        notes = context.client.ask(request, Done).notes
    except Unavailable as exc:
        warnings.append(f"only the file was checked: {exc}")
    if arguments.json:
        _print_document(context, arguments.file, None, warnings)
        return ExitCode.OK
    screen = context.screen
    screen.tell(f"{screen.err.paint('✓', 'green')} {arguments.file} is valid")
    for line in (*notes, *warnings):
        screen.tell(f"  {safe(line)}")
    return ExitCode.OK


def _print_document(context: Context, file: str, invalid: JobInvalid | None, warnings: list[str]) -> None:
    from supervisor.cli import documents

    problems = [
        {"code": p.code, "key": p.key, "value": p.value or None, "message": p.message, "hint": p.hint}
        for p in (invalid.problems if invalid else ())
    ]
    data = {"file": file, "valid": invalid is None, "problems": problems}
    context.screen.print(documents.document("validate", data, warnings))
