import resource

import pytest

from protocol.job import RunTable
from supervisor.daemon.limits import limit_warnings
from tests.protocol.build import job_spec, submitted


@pytest.fixture
def hard() -> int:
    """The hard limit of open files here; it is a number, and not unlimited, on every Linux."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def warned(submitters: dict[str, int], jobs: dict[str, int]) -> tuple[str, ...]:
    spec = job_spec(run=RunTable(script="t.py", limits=jobs))
    return limit_warnings(spec, submitted(spec, limits=submitters).submitter)


def test_limits_that_this_node_can_give_are_nothing_to_tell(hard: int) -> None:
    assert warned({"nofile": hard}, {"core": 0}) == ()
    assert warned({"nofile": hard + 1}, {"nofile": hard}) == (), "the job file's counts"


def test_a_limit_above_the_hard_one_is_told_with_whose_it_is_and_what_ranks_get(hard: int) -> None:
    (said,) = warned({"nofile": hard + 1}, {})
    assert said.startswith(
        f"warning[F207]: the submitter's limit nofile, {hard + 1}, is above this node's hard limit: ranks get {hard};"
    )
    (said,) = warned({"nofile": 1}, {"nofile": -1})
    assert said.startswith("warning[F207]: run.limits.nofile = unlimited is above this node's hard limit: ranks get ")
    assert said.endswith("(ulimit -H, LimitNOFILE= in its unit)")
