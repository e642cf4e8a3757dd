"""What stands in front of a rank's line in `supctl logs`."""

import string

from protocol.messages.control import RankStatus, RunStatus
from supervisor.cli.arguments import UsageError
from supervisor.cli.log_lines import Source
from supervisor.cli.moments import local_time, utc_time
from supervisor.cli.screen import Stream

FIELDS = ("time", "node", "rank", "local_rank", "gen", "stream", "pid")

COLOURS = ("cyan", "green", "magenta", "blue", "yellow")
BRIGHTNESS = ("bold", "", "dim")
"""Of a node's ranks, one after the other."""


class Prefix:
    """`0 │ `, the rank (on more than one node NODE:RANK) and the stream's bar, in columns as wide as they must be;
    with `has_time` behind the time, and with a template as that says. Raises UsageError for a template it can't fill.

    A rank has its own colour, or where there are several nodes the node's, brighter or darker than its neighbours.
    """

    def __init__(self, template: str | None = None, *, has_time: bool = False, is_utc: bool = False) -> None:
        self._template = template
        self._has_time = has_time
        fields = set() if template is None else _fields(template)
        self._has_pid = "pid" in fields
        self.is_steady = not has_time and "time" not in fields  # it is the same for all lines of a source
        self._time = utc_time if is_utc else local_time
        self._columns = 0
        self._is_one_node = True
        self._nodes: dict[str, int] = {}  # in the order in which they were first seen
        self._ranks: dict[tuple[int, int], RankStatus] = {}  # by generation and rank, where pids are wanted
        self._made: dict[Source, str] = {}
        """What stands in front of all lines of a source, but for the time."""

    def fit(self, run: RunStatus) -> None:
        """Take the columns that the labels of `run` need, and the pids that it tells."""
        self._is_one_node = run.nnodes[1] == 1
        longest_node = 0 if self._is_one_node else max((len(node) + 1 for node in run.nodes), default=0)
        columns = max(self._columns, longest_node + len(str(max((run.ranks or 1) - 1, 0))))
        if columns != self._columns or self._has_pid:
            self._columns = columns
            self._made.clear()
        for node in run.nodes:
            self._nodes.setdefault(node, len(self._nodes))
        if self._has_pid and run.generation is not None:
            kept = {key: rank for key, rank in self._ranks.items() if key[0] == run.generation - 1}  # its last lines
            newest = {(run.generation, rank.rank): rank for rank in run.rank_list}
            self._ranks = kept | newest if newest else self._ranks

    def of(self, source: Source, read_s: float, out: Stream) -> str:
        """In front of a line that was read at `read_s` (0: not known)."""
        if self._template is not None and not self.is_steady:
            return self._filled(source, self._time(read_s))
        made = self._made.get(source)
        if made is None:
            made = self._made[source] = self._filled(source) if self._template is not None else self._label(source, out)
        return self._time_column(read_s, out) + made

    def of_supervisor(self, wall_s: float, out: Stream) -> str:
        """In front of what the supervisor did."""
        return f"{self._time_column(wall_s, out)}{out.paint('sup'.rjust(self._columns), 'dim')} │ "

    def _filled(self, source: Source, time: str = "") -> str:
        assert self._template is not None
        rank = self._ranks.get((source.generation, source.rank))
        return self._template.format(
            time=time,
            node=source.node,
            rank=source.rank,
            local_rank=self._local_rank(source),
            gen=source.generation,
            stream=source.stream,
            pid="?" if rank is None or rank.pid is None else rank.pid,
        )

    def _local_rank(self, source: Source) -> int:
        return source.rank if source.local_rank < 0 else source.local_rank

    def _label(self, source: Source, out: Stream) -> str:
        bar = "│" if source.stream == "out" else out.paint("┃", "red")
        if self._is_one_node:
            label = out.paint(str(source.rank).ljust(self._columns), COLOURS[source.rank % len(COLOURS)])
            return f"{label} {bar} "
        number = self._nodes.setdefault(source.node, len(self._nodes))
        brightness = BRIGHTNESS[self._local_rank(source) % len(BRIGHTNESS)]
        label = f"{source.node}:{source.rank}".ljust(self._columns)
        return f"{out.paint(label, COLOURS[number % len(COLOURS)], brightness)} {bar} "

    def _time_column(self, wall_s: float, out: Stream) -> str:
        return f"{out.paint(self._time(wall_s), 'dim')} " if self._has_time else ""


def _fields(template: str) -> set[str]:
    """The fields that it names. Raises UsageError."""
    hint = f"write it like '{{time}} {{node}}:{{rank}} '; there are {', '.join(FIELDS)}"
    found = set()
    try:
        for _, name, _, conversion in string.Formatter().parse(template):
            if name is None:
                continue
            if name not in FIELDS or conversion:
                raise UsageError(f"--prefix {template!r}: there is no field {{{name}}}", hint)
            found.add(name)
        template.format(time="", node="", rank=0, local_rank=0, gen=0, stream="", pid="")
    except (ValueError, LookupError) as exc:
        raise UsageError(f"--prefix {template!r}: {exc}", hint) from None
    return found
