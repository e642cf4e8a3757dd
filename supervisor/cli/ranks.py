"""Which ranks `-r` means: its words become numbers here, and what the run does not have is an error."""

import re
from collections.abc import Callable, Iterable, Mapping

from protocol.chooser import FORM, Chooser, Piece, parse
from protocol.errors import Refused
from protocol.exit_code import ExitCode
from protocol.messages.control import EventRecord, GetNodes, Nodes, RankStatus, RunStatus, Watch
from protocol.text import numbers_text, some_of
from supervisor.cli.arguments import UsageError
from supervisor.cli.client import Client
from supervisor.cli.watching import TICK_S


def needs_ranks(text: str) -> bool:
    """Whether it can be told only once the run has ranks. Raises UsageError."""
    chooser = _parsed(",".join("0" if piece.removeprefix("!") in WORDS else piece for piece in text.split(",")))
    return bool(chooser.ranks or chooser.nodes)


def chosen(text: str, run: RunStatus, client: Client) -> list[RankStatus]:
    """Those of its `rank_list`. Raises as `resolve` does."""
    return wanted(resolve(text, run, client), run)


def resolve(text: str, run: RunStatus, client: Client, *, is_newest: bool = True) -> str:
    """What supd is to be told for `text`, where only the newest generation counts, or others too. `run` comes with its
    ranks.

    Raises UsageError for another form, Refused for a rank or a node that the run does not have, and for what means
    none.
    """
    numbers = ",".join(_numbers(piece, run) for piece in text.split(","))
    chooser = _parsed(numbers)
    unknown = _unknown(chooser, run.ranks or 0, run.nodes)
    if unknown and not is_newest:
        unknown = _unknown(chooser, *_ever(run, client))
    if unknown:
        raise _no_such(unknown[0], run)
    if is_newest and run.rank_list and not wanted(numbers, run):
        message = f"-r {text}: {run.run} has no such rank"
        raise Refused("C009", message, hint=f"supctl ps {run.run}", exit_code=ExitCode.NOT_FOUND)
    return numbers


def wanted(numbers: str, run: RunStatus) -> list[RankStatus]:
    """Those of its `rank_list` that supd will choose for what `resolve` has returned."""
    wants = parse(numbers).wants
    return [rank for rank in run.rank_list if wants(rank.rank, rank.local_rank, rank.node)]


def _parsed(text: str) -> Chooser:
    try:
        return parse(text)
    except ValueError as exc:
        raise UsageError(str(exc), "") from None  # the command's own help


# --- words -------------------------------------------------------------------------------------------------------


def _root(run: RunStatus) -> list[int]:
    return [] if run.incident is None or run.incident.rank is None else [run.incident.rank]


def _failed(run: RunStatus) -> list[int]:
    return [
        rank.rank
        for rank in run.rank_list
        if not rank.stopped_by_supervisor and (rank.shell_code or rank.state in ("killed", "lost"))
    ]


def _stalled(run: RunStatus) -> list[int]:
    return [rank.rank for rank in run.rank_list if rank.state == "stalled"]


def _behind(run: RunStatus) -> list[int]:
    steps = {rank.rank: rank.step for rank in run.rank_list if rank.step is not None}
    least = min(steps.values(), default=0)
    return [rank for rank, step in steps.items() if step == least] if len({*steps.values()}) > 1 else []


WORDS: Mapping[str, tuple[Callable[[RunStatus], list[int]], str]] = {
    "root": (_root, "no incident that one rank began"),
    "failed": (_failed, "no rank of the newest generation that has failed"),
    "stalled": (_stalled, "no rank that is stalled"),
    "behind": (_behind, "no rank that shows a lower step than others"),
}
"""Of each word: the ranks it means, and what it is if those are none."""


def _numbers(piece: str, run: RunStatus) -> str:
    word = piece.removeprefix("!")
    if word not in WORDS:
        return piece
    find, nothing = WORDS[word]
    ranks = find(run)
    if not ranks:
        raise Refused(
            "C009", f"-r {word}: {run.run} has {nothing}", hint=f"supctl ps {run.run}", exit_code=ExitCode.NOT_FOUND
        )
    out = "!" * piece.startswith("!")
    return ",".join(f"{out}{part}" for part in numbers_text(ranks).split(","))


# --- what there is -----------------------------------------------------------------------------------------------


def _unknown(chooser: Chooser, size: int, nodes: Iterable[str]) -> list[Piece]:
    known = {*nodes}
    return [
        piece
        for piece in chooser.pieces
        if (piece.ranks is not None and piece.ranks.stop > size) or not {*(piece.nodes or ())} <= known
    ]


def _ever(run: RunStatus, client: Client) -> tuple[int, list[str]]:
    """The most ranks that a generation of the run has had, and the nodes that may have had some, or may get some."""
    size, nodes = run.ranks or 0, [*run.nodes, *(node.node for node in client.ask(GetNodes(), Nodes).nodes)]
    for reply in client.stream(Watch(run=run.run, follow=False, events=True), TICK_S):
        if isinstance(reply, EventRecord):
            ranks, node = reply.detail.get("ranks"), reply.detail.get("node")
            size = max(size, ranks) if isinstance(ranks, int) else size
            nodes += [node] if isinstance(node, str) else []
    return size, nodes


def _no_such(piece: Piece, run: RunStatus) -> Refused:
    if piece.ranks is not None:
        message = f"no rank {piece.text} in {run.run}: "
        message += f"it has ranks 0-{run.ranks - 1}" if run.ranks else "its ranks are not known yet"
        return Refused("C009", message, hint=f"supctl ps {run.run}", exit_code=ExitCode.NOT_FOUND)
    if re.fullmatch("[0-9]+-", piece.text):  # a node may be named so, but none is
        return UsageError(f"ranks {piece.text!r}: write them {FORM}", "")
    known = f"it is on {some_of(run.nodes)}" if run.nodes else "it has no nodes yet"
    message = f"no node {piece.text.partition('/')[0]} in {run.run}: {known}"
    return Refused("C009", message, hint="supctl nodes", exit_code=ExitCode.NOT_FOUND)
