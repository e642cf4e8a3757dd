"""How often the start of a runner has failed, node by node, and when it is tried again."""

RUNNER_ATTEMPTS_MAX = 5
"""How often in a row a runner may fail to start before the run fails; the waits between are RUNNER_RETRY_S."""

RUNNER_RETRY_S = 1.0


class RunnerStarts:
    """The failed starts of one run's runners."""

    def __init__(self) -> None:
        self.retry_at_s: float | None = None
        self._failed: dict[str, int] = {}  # in a row

    def has_failed(self, node: str) -> bool:
        """One more has; returns whether those were too many."""
        self._failed[node] = self._failed.get(node, 0) + 1
        return self._failed[node] >= RUNNER_ATTEMPTS_MAX

    def retry_after(self, now_s: float) -> None:
        """Try all that are wanted again in a while."""
        self.retry_at_s = now_s + RUNNER_RETRY_S

    def has_come(self, node: str) -> None:
        """A runner of this node has reported: its count begins anew."""
        self._failed.pop(node, None)

    def is_due(self, now_s: float) -> bool:
        """Whether it is time to try again; said once."""
        is_due = self.retry_at_s is not None and now_s >= self.retry_at_s
        if is_due:
            self.retry_at_s = None
        return is_due
