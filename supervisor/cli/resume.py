"""Go on with a run that is held (restart.on_budget_spent = "hold"): its budgets are as at its start.

Ends with 0 when the next generation runs; if the run ended instead, 4, 7 for no progress, 75 for too few nodes, or 5;
if it is held after that generation, 4.
"""

import argparse

from protocol.messages.control import Done
from protocol.messages.upkeep import ResumeRun
from supervisor.cli.arguments import add_job
from supervisor.cli.context import Context
from supervisor.cli.follow import await_generation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl resume`'s own arguments."""
    add_job(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Resume, then look on until the next generation runs."""
    name = context.client.resolve(arguments.job)
    before = context.client.status(name).generation
    context.client.ask(ResumeRun(run=name), Done)
    context.screen.tell(f"resuming {name}: its budgets are as at its start")
    return await_generation(context, name, before, "going on")
