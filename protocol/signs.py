"""Which ranks show their progress in their output or in a file, by what the job says. Pure functions."""

from collections.abc import Iterable

from protocol.job import JobSpec, ProgressTable
from protocol.selector import choose_ranks

_PER_RANK = ("{rank}", "{local_rank}", "${RANK}", "${LOCAL_RANK}")


def log_ranks(table: ProgressTable, world_size: int) -> frozenset[int]:
    """Ranks whose output is looked at; those of `log_ranks` that are not there are left out."""
    if not table.log_pattern or table.source not in ("auto", "log"):
        return frozenset()
    return frozenset(choose_ranks(table.log_ranks, world_size, is_strict=False))


def save_ranks(spec: JobSpec, world_size: int) -> frozenset[int]:
    """Ranks whose output is looked at for `checkpoint.log_pattern`: those of `progress.log_ranks` that are there."""
    if not spec.checkpoint.log_pattern:
        return frozenset()
    return frozenset(choose_ranks(spec.progress.log_ranks, world_size, is_strict=False))


def file_ranks(table: ProgressTable, ranks: Iterable[int]) -> frozenset[int]:
    """Those of `ranks` whose file is looked at: all, where their ranks are in its name; else it is rank 0's."""
    if not table.file or table.source not in ("auto", "file"):
        return frozenset()
    has_own = any(word in table.file for word in _PER_RANK)
    return frozenset(ranks if has_own else {0}.intersection(ranks))
