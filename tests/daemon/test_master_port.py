from protocol.errors import About
from protocol.job import JobSpec, RendezvousTable, RunTable
from supervisor.daemon.master_port import port_problems


def names(port: int | str) -> JobSpec:
    """A job that names a port for its rank 0."""
    return JobSpec(name="j", run=RunTable(script="t.py"), rendezvous=RendezvousTable(master_port=port))


def told(port: int | str, taken: dict[int, str]) -> list[tuple[str, str]]:
    """Message and hint, for a supd that listens on port 7000."""
    problems = port_problems(names(port), 7000, taken)
    assert all(p.about == About(("rendezvous", "master_port")) and p.value == str(port) for p in problems)
    return [(problem.message, problem.hint) for problem in problems]


def test_a_port_of_its_own_or_none_at_all_is_fine() -> None:
    for port in (29500, "auto"):
        assert told(port, {29501: "other@1"}) == []


def test_supds_own_port_is_refused_with_a_hint() -> None:
    """H41."""
    assert told(7000, {}) == [
        (
            "`rendezvous.master_port` is the port on which this supd listens for runners",
            'write "auto", or another; supd\'s own is [listen] peer in supd.toml',
        )
    ]


def test_another_runs_port_is_refused_with_its_name() -> None:
    """H38."""
    assert told(29501, {29501: "other@1"}) == [
        (
            "`rendezvous.master_port` is the port of other@1, which is active on this node",
            'write "auto", or another; or stop that one: supctl stop other@1',
        )
    ]
