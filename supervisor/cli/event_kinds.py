"""The kinds of events that there are (docs/events.md)."""

KINDS = (
    "job.accepted",
    "job.taken_over",
    "generation.launched",
    "ranks.counted",
    "generation.ready",
    "runner.failed",
    "runner.lost",
    "rank.stalled",
    "rank.resumed",
    "incident.opened",
    "incident.corrected",
    "generation.ended",
    "restart.decided",
    "node.joined",
    "node.replaced",
    "node.unfit",
    "node.left",
    "node.refused",
    "node.suspect",
    "node.unreachable",
    "node.answers",
    "node.lost",
    "node.fenced",
    "node.unwitnessed",
    "run.taken_over",
    "operator.stopped",
    "operator.restarted",
    "operator.node_lost",
    "job.succeeded",
    "job.failed",
    "job.stopped",
)

KIND_GROUPS = tuple(sorted({f"{kind.partition('.')[0]}.*" for kind in KINDS}))
"""All that begin alike, as patterns."""
