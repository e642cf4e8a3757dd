"""What the restart policy would do if a rank ended in some way, from where the run stands; changes nothing.

Waits are the longest that there may be. `--after 5` tells of five failures in a row, the second and later ones as soon
as the ranks have started: that is where a budget, the ceiling of a cause or `no_progress_limit` ends the run.
"""

import argparse

from protocol.exit_code import ExitCode
from protocol.messages.upkeep import AskPolicy, Policy, PolicyStep
from supervisor.cli.arguments import add_job, add_json
from supervisor.cli.context import Context
from supervisor.cli.render import span, table

TIMES_MAX = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl policy`'s own arguments."""
    add_job(parser)
    parser.add_argument(
        "--exit",
        metavar="CODE",
        dest="exit_code",
        type=_exit_code,
        required=True,
        help="how the rank ends, as a shell shows it: 1 to 255, 128 + N for signal N (139 is SIGSEGV)",
    )
    parser.add_argument(
        "--rank", metavar="N", type=_rank, default=0, help="which rank (default 0); no rule makes a difference of it"
    )
    parser.add_argument(
        "--after", metavar="N", type=_times, default=1, help=f"so many such failures in a row, 1 to {TIMES_MAX}"
    )
    add_json(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Print a line for each failure, up to the one that would end the run."""
    name = context.client.resolve(arguments.job)
    request = AskPolicy(run=name, exit_code=arguments.exit_code, times=arguments.after)
    policy = context.client.ask(request, Policy)
    screen = context.screen
    if arguments.json:
        from supervisor.cli import documents

        exit_code, rank = arguments.exit_code, arguments.rank
        screen.print(documents.document("policy", {"exit": exit_code, "rank": rank, **_fields(policy)}))
        return ExitCode.OK
    rows = [("FAILURE", "THEN", "WAIT", ""), *(_row(step) for step in policy.steps)]
    screen.print(f"{name}: if rank {arguments.rank} ended with {arguments.exit_code} now")
    screen.print(*table(rows, screen.out))
    return ExitCode.OK


def _fields(policy: Policy) -> dict[str, object]:
    return {"run": policy.run, "steps": policy.steps}


def _row(step: PolicyStep) -> tuple[str, ...]:
    wait = "-" if step.action != "restart" else "none" if not step.delay_s else f"up to {span(step.delay_s)}"
    return str(step.number), step.action, wait, step.why


def _number(text: str, least: int, most: int) -> int:
    if not text.isascii() or not text.isdecimal() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r}: write a number from {least} to {most}")
    return int(text)


def _exit_code(text: str) -> int:
    if text == "0":
        raise argparse.ArgumentTypeError("a rank that ends with 0 has done its work: no failure to decide about")
    return _number(text, 1, 255)


def _rank(text: str) -> int:
    return _number(text, 0, 2**31 - 1)


def _times(text: str) -> int:
    return _number(text, 1, TIMES_MAX)
