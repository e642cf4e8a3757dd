"""What stands in front of a rank's line in `supctl logs`."""

import string
from collections.abc import Mapping

from protocol.messages.control import RunStatus
from supervisor.cli.arguments import UsageError
from supervisor.cli.log_lines import Source
from supervisor.cli.moments import local_time, utc_time
from supervisor.cli.screen import Stream

FIELDS = ("time", "node", "rank", "local_rank", "gen", "stream")

RANK_STYLES = ("cyan", "green", "magenta", "blue", "yellow")


class Prefix:
    """`0 │ `, the rank (on more than one node NODE:RANK) and the stream's bar, in columns as wide as they must be;
    with `has_time` behind the time, and with a template as that says. Raises UsageError for a template it can't fill.
    """

    def __init__(self, template: str | None = None, *, has_time: bool = False, is_utc: bool = False) -> None:
        self._template = template
        self._has_time = has_time
        self._time = utc_time if is_utc else local_time
        self._columns = 0
        self._is_one_node = True
        self._local_ranks: Mapping[int, int] = {}
        if template is not None:
            _check(template)

    def fit(self, run: RunStatus) -> None:
        """Take the columns that the labels of `run` need."""
        self._is_one_node = run.nnodes[1] == 1
        longest_node = 0 if self._is_one_node else max((len(node) + 1 for node in run.nodes), default=0)
        self._columns = max(self._columns, longest_node + len(str(max((run.ranks or 1) - 1, 0))))
        if run.rank_list:
            self._local_ranks = {rank.rank: rank.local_rank for rank in run.rank_list}

    def of(self, source: Source, read_s: float, out: Stream) -> str:
        """In front of a line that was read at `read_s` (0: not known)."""
        if self._template is not None:
            return self._template.format(
                time=self._time(read_s),
                node=source.node,
                rank=source.rank,
                local_rank=self._local_ranks.get(source.rank, source.rank),  # on one node they are the same
                gen=source.generation,
                stream=source.stream,
            )
        label = str(source.rank) if self._is_one_node else f"{source.node}:{source.rank}"
        label = out.paint(label.ljust(self._columns), RANK_STYLES[source.rank % len(RANK_STYLES)])
        bar = "│" if source.stream == "out" else out.paint("┃", "red")
        return f"{self._time_column(read_s, out)}{label} {bar} "

    def of_supervisor(self, wall_s: float, out: Stream) -> str:
        """In front of what the supervisor did."""
        return f"{self._time_column(wall_s, out)}{out.paint('sup'.rjust(self._columns), 'dim')} │ "

    def _time_column(self, wall_s: float, out: Stream) -> str:
        return f"{out.paint(self._time(wall_s), 'dim')} " if self._has_time else ""


def _check(template: str) -> None:
    hint = f"write it like '{{time}} {{node}}:{{rank}} '; there are {', '.join(FIELDS)}"
    try:
        for _, name, _, conversion in string.Formatter().parse(template):
            if name is not None and (name not in FIELDS or conversion):
                raise UsageError(f"--prefix {template!r}: there is no field {{{name}}}", hint)
        template.format(time="", node="", rank=0, local_rank=0, gen=0, stream="")
    except (ValueError, LookupError) as exc:
        raise UsageError(f"--prefix {template!r}: {exc}", hint) from None
