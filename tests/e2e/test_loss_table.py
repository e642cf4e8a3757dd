"""The table of losses in docs/operations.md, the tests and scripts/soak tell of the same rows."""

import re
from fnmatch import fnmatchcase
from pathlib import Path

from tests.e2e.loss_rows import of_groups, of_links, of_processes, of_slow_links
from tests.e2e.losses import Lease

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def patterns() -> list[str]:
    """What stands in the last column."""
    _, _, rest = PAGE.read_text().partition("### In a fleet: what is lost")
    lines = [line for line in rest.partition("**Not promised")[0].splitlines() if line.startswith("| ")]
    return [name for line in lines[1:] for name in re.findall("`([^`]+)`", line.split("|")[-2])]


def test_every_row_of_the_table_is_played_and_every_row_that_is_played_is_in_it() -> None:
    rows = [*of_processes(), *of_links(), *of_groups(Lease.FAST), *of_slow_links()]
    named = patterns()
    assert [row.name for row in rows if not any(fnmatchcase(row.name, name) for name in named)] == []
    daily = [row.name for row in rows if row.is_daily]
    assert [name for name in named if not any(fnmatchcase(row, name) for row in daily)] == []


def test_no_two_rows_have_one_name() -> None:
    names = [row.name for row in (*of_processes(), *of_links(), *of_groups(Lease.FAST), *of_slow_links())]
    assert sorted(set(names)) == sorted(names)
