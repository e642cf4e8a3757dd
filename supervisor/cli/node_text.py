"""Nodes as text: the table of `supctl nodes`, that of a run in `supctl status JOB`, and `supctl describe node`."""

from collections.abc import Mapping, Sequence

from protocol.ids import RunId, job_name
from protocol.messages.control import NodeStatus, RankStatus, RunStatus
from protocol.text import host_port
from supervisor.cli.moments import date_and_clock
from supervisor.cli.render import age, fact_lines, painted, span, table
from supervisor.cli.screen import Stream

HEADS = ("NODE", "STATE", "JOB", "DEVICES", "FREE", "ADDRESS", "SUPD", "CLOCK", "SEEN", "NOTE")
DEVICES, FREE = HEADS.index("DEVICES"), HEADS.index("FREE")
RUN_HEADS = ("NODE", "STATE", "RANKS", "UP", "NOTE")

NODES_SHOWN_MAX = 64
"""Of a run, below `supctl status JOB`."""

UP = ("initializing", "running", "stalled")

GIB = 1024**3


def nodes_table(nodes: Sequence[NodeStatus], stream: Stream, *, is_wide: bool = False) -> list[str]:
    """A line a node. Where it is narrow the addresses go first; where nothing is shared out, that is not shown."""
    rows = [HEADS, *(_row(node) for node in nodes)]
    if all(row[DEVICES] == row[FREE] == "-" for row in rows[1:]):
        rows = [(*row[:DEVICES], *row[FREE + 1 :]) for row in rows]
    return table(rows, stream, is_wide=is_wide, spare=rows[0].index("ADDRESS"))


def _row(node: NodeStatus) -> Sequence[str]:
    jobs = dict.fromkeys(job_name(RunId(run)) for run in (*node.runs, *node.spare_of))
    note = ", ".join(filter(None, ("coordinator" if node.is_host else "", node.note)))
    return (
        node.node,
        node.state,
        ",".join(jobs) or "-",
        devices_of(node),
        free_of(node),
        address_of(node),
        node.supd or "-",
        clock_of(node),
        age(node.seen_s),
        note,
    )


def devices_of(node: NodeStatus) -> str:
    """`8 H100 80GB HBM3`, `4 slots`, or both where they are not as many; `-` where there is nothing to share out."""
    found = "" if node.devices == "none" else node.devices.replace("NVIDIA ", "")
    if node.slots is None or (found and found.split()[0] == str(node.slots)):
        return found or "-"
    return ", ".join(filter(None, (found, f"{node.slots} slot{'' if node.slots == 1 else 's'}")))


def free_of(node: NodeStatus) -> str:
    """The slots that no job has; `?` where nobody answers, `-` where there is no limit."""
    if node.free_slots is None:
        return "-"
    return "?" if node.state in ("unreachable", "lost") else str(node.free_slots)


def address_of(node: NodeStatus) -> str:
    """HOST:PORT, at which peers find it."""
    return host_port(node.address, node.port)


def clock_of(node: NodeStatus) -> str:
    """+3ms, -1.2s: how far its clock was off; `-` for the coordinator's own, and for what is not known."""
    off_s = node.clock_off_s
    if off_s is None or node.is_host:
        return "-"
    return f"{off_s * 1000:+.0f}ms" if abs(off_s) < 1 else f"{'-' if off_s < 0 else '+'}{span(abs(off_s))}"


def run_nodes_table(
    run: RunStatus, nodes: Mapping[str, NodeStatus], stream: Stream, *, is_wide: bool = False
) -> list[str]:
    """The nodes of a run in the order of their ranks, and those that stand by; with the run's ranks."""
    ranks: dict[str, list[RankStatus]] = {}
    for rank in run.rank_list:
        ranks.setdefault(rank.node, []).append(rank)
    rows: list[Sequence[str]] = [RUN_HEADS]
    for number, name in enumerate(run.nodes):
        rows.append(_run_row(name, nodes.get(name), ranks.get(name, []), "master" if number == 0 else ""))
    rows += [_run_row(name, nodes.get(name), [], "spare") for name in run.spares]
    lines = table(rows[: NODES_SHOWN_MAX + 1], stream, is_wide=is_wide)
    more = len(rows) - len(lines)
    return [*lines, f"and {more} more   → supctl nodes"] if more > 0 else lines


def _run_row(name: str, node: NodeStatus | None, ranks: Sequence[RankStatus], role: str) -> Sequence[str]:
    state = "-" if node is None else node.state
    if role == "spare" and state == "ready":  # it has ranks of another run
        state = "standby"
    is_host = node is not None and node.is_host
    notes = ("coordinator" if is_host else "", role, "" if node is None else node.note)
    up = f"{sum(rank.state in UP for rank in ranks)}/{len(ranks)}" if ranks else "-"
    return name, state, ranks_text([rank.rank for rank in ranks]), up, ", ".join(filter(None, notes))


def ranks_text(ranks: Sequence[int]) -> str:
    """`0-7` of neighbours, `-` of none: the ranks of a node follow one another."""
    if not ranks:
        return "-"
    return str(ranks[0]) if len(ranks) == 1 else f"{min(ranks)}-{max(ranks)}"


def node_lines(node: NodeStatus, ranks: Mapping[str, Sequence[int]], stream: Stream) -> list[str]:
    """Everything about one node; `ranks` has those of each run there."""
    memory = f"{node.memory_bytes / GIB:.0f} GiB" if node.memory_bytes else ""
    runs = [
        f"{run} ({'rank' if len(ranks.get(run, ())) == 1 else 'ranks'} {ranks_text(ranks.get(run, ()))})"
        for run in node.runs
    ]
    spares = [f"{run} (stands by)" for run in node.spare_of]
    facts = [
        ("note", node.note),
        *(("runs" if number == 0 else "", text) for number, text in enumerate([*runs, *spares])),
        ("address", address_of(node)),
        ("seen", "" if node.seen_s is None else f"{age(node.seen_s)} ago"),
        ("joined", date_and_clock(node.joined_wall_s) if node.joined_wall_s else ""),
        ("clock", "" if node.is_host or node.clock_off_s is None else f"{clock_of(node)} as it joined"),
        *(
            ("labels" if number == 0 else "", f"{key} = {value}")
            for number, (key, value) in enumerate(sorted(node.labels.items()))
        ),
        ("host", node.host),
        ("supd", node.supd),
        ("python", node.python),
        ("kernel", node.kernel),
        ("boot", node.boot_id),
        ("cpus", str(node.cpus or "")),
        ("memory", memory),
        ("devices", node.devices),
        ("slots", "" if node.slots is None else f"{free_of(node)} of {node.slots} free"),
        ("max jobs", str(node.max_jobs or "")),
    ]
    head = f"{node.node}  {painted(node.state, stream)}" + ("   hosts the coordinator" if node.is_host else "")
    return [head, *fact_lines(facts)]
