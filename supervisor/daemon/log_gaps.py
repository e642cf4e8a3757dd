"""What of a run's output was there once and is not kept any more, as it is told to a reader."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from protocol.text import numbers_text, some_of


def not_kept(there: Mapping[str, tuple[int, ...]], wanted: range, keep: int, seated: Iterable[str]) -> list[str]:
    """What to say of the generations of `wanted` that have no output any more, at most a line for each set of nodes.

    `there` are the generations that each node has output of. A runner removes none before there are `keep` of them,
    and never the first or the last one: where another one is not there, it has been removed. All of them go only with
    their run. `seated` are the nodes that must have had output, because the run is over and has ended there.
    """
    lacking: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for node, kept in there.items():
        if len(kept) >= keep - 1:  # the newest one may be still to come
            between = range(max(wanted.start, kept[0]), min(wanted.stop, kept[-1]))
            lacking[tuple(sorted({*between} - {*kept}))].append(node)
    lacking.pop((), None)
    having = sum(bool(kept) for kept in there.values())
    texts = []
    for gone, nodes in lacking.items():
        which = f"generation{'s' * (len(gone) > 1)} {numbers_text(gone)}"
        where = "" if len(nodes) == having else f" on {some_of(sorted(nodes))}"
        texts.append(f"the output of {which}{where} is not kept any more ([logs] keep_generations)")
    if empty := sorted(node for node in seated if there.get(node) == ()):
        where = f" on {some_of(empty)}" if having else ""
        texts.append(f"the output of this run{where} is not kept any more ([state] max_disk, min_free)")
    return texts
