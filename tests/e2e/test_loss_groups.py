"""Nodes are cut off from all others: a member, the host, half of them. The side without the coordinator ends its ranks,
the other goes on if it may, and nothing runs twice."""

from collections.abc import Iterator

import pytest

from tests.e2e.loss_rows import FOUR, of_groups
from tests.e2e.losses import Lease, Row, Stage
from tests.netns import needs_namespaces

pytestmark = [needs_namespaces, pytest.mark.timeout(400)]  # for up to three tries on a slow machine

ROWS = [row for row in of_groups(Lease.FAST) if row.is_daily]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """One for all rows: each leaves it whole (Stage)."""
    with Stage(len(FOUR)) as made:
        yield made


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_side_without_the_coordinator_ends_and_nothing_runs_twice(stage: Stage, row: Row) -> None:
    stage.play(row)
