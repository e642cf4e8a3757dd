"""What a supd has that hosts the coordinator. A node that joins another one never loads it: it is a fourth of all."""

from collections.abc import Awaitable, Callable

from protocol.dataclass import dataclass
from protocol.messages.fleet import Join
from supervisor.daemon.desk import Desk
from supervisor.daemon.door import Door
from supervisor.daemon.fetch import Fetcher
from supervisor.daemon.jobs import Jobs
from supervisor.daemon.journal import Journal
from supervisor.daemon.members import Members
from supervisor.daemon.node import Node
from supervisor.daemon.nodes import Nodes
from supervisor.daemon.probe import Prober
from supervisor.daemon.retention import Keep
from supervisor.daemon.starting import Starting
from supervisor.shell.config import Config
from supervisor.shell.dial import Dialer


@dataclass(frozen=True)
class Hosted:
    """The parts of a coordinator, and the place where the others find it."""

    jobs: Jobs
    nodes: Nodes
    desk: Desk
    members: Members
    starting: Starting
    place: tuple[str, int]


def make_hosted(
    config: Config,
    journal: Journal,
    door: Door,
    dialer: Dialer,
    node: Node,
    own: Join,
    host: str,
    *,
    epoch: int,
    on_unlinked: Callable[[str], None],
    before_epoch: Callable[[int], Awaitable[None]],
) -> Hosted:
    """For this node, which says `own` of itself, and is reached at `host` by those of its machine."""
    jobs = Jobs(
        journal,
        config.logs_dir,
        epoch,
        on_wanted=lambda run, wanted: nodes.want(run, wanted),
        on_unlinked=on_unlinked,
        on_seated=lambda: nodes.see_seats(),
        on_blamed=lambda node: nodes.blame(node),
        on_epoch=lambda epoch: nodes.on_epoch(epoch),
        before_epoch=before_epoch,
        timing=config.timing,
        keeps_isolated=config.on_isolation == "keep",
        keep=Keep(config.keep_runs, config.keep_days),
    )
    starting = Starting(jobs, journal, None if config.join else (host, own.port))
    nodes = Nodes(jobs, journal, own, node, Prober(dialer, config.fleet))
    fetcher = Fetcher(nodes, dialer, config.fleet)
    desk = Desk(jobs, starting, nodes, journal, fetcher, config.node, config.labels)
    return Hosted(jobs, nodes, desk, Members(jobs, door), starting, (own.address, own.port))
