"""What two nodes send each other is cut, reset or refused, slow or lost: others stand in for it, and nothing ends."""

from collections.abc import Iterator

import pytest

from tests.e2e.loss_rows import FOUR, of_links, of_slow_links
from tests.e2e.losses import Lease, Row, Stage
from tests.netns import needs_namespaces

pytestmark = [needs_namespaces, pytest.mark.timeout(400)]  # for up to three tries on a slow machine

ROWS = [row for row in of_links() if row.is_daily]
SLOW_ROWS = [row for row in of_slow_links() if row.is_daily]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """One for all rows: each leaves it whole (Stage)."""
    with Stage(len(FOUR)) as made:
        yield made


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_two_nodes_that_do_not_reach_each_other_end_nothing(stage: Stage, row: Row) -> None:
    stage.play(row)


@pytest.fixture(scope="module")
def stage_at_defaults() -> Iterator[Stage]:
    with Stage(len(FOUR), Lease.DEFAULTS) as made:
        yield made


@pytest.mark.parametrize("row", SLOW_ROWS, ids=lambda row: row.name)
def test_slow_and_lossy_links_end_nothing(stage_at_defaults: Stage, row: Row) -> None:
    stage_at_defaults.play(row)
