"""What supctl ends with: the only copy of this table (docs/cli.md shows it to users)."""

import enum


class ExitCode(enum.IntEnum):
    """A supd that refuses a request says itself which of these supctl ends with (`Failure.exit_code`)."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> "ExitCode":
        """A code and what it means, in Markdown."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    OK = 0, "done, the condition is reached, the job succeeded; a read that could answer"
    FAILED = 1, "the operation failed"
    USAGE = 2, "usage error"
    NOT_FOUND = 3, "no such job, run, rank or generation"
    JOB_FAILED = 4, "the job failed (`start`, `restart`, `resume`, `wait`, `logs --exit-status`)"
    JOB_STOPPED = 5, "the job was stopped, or preempted, before what was waited for"
    FINDINGS = 6, "something was found (`status --check`, `validate --strict`)"
    NO_PROGRESS = 7, "the job failed: it made no progress (`restart.no_progress_limit`)"
    UNAVAILABLE = 69, "no supd that answers: absent, hung, of another version, or gone in the middle"  # EX_UNAVAILABLE
    LACKED_NODES = (
        75,
        "too few nodes within `rendezvous.join_timeout`, or after some were taken away (`preemption.exit_code`)",
    )  # EX_TEMPFAIL
    NOT_ALLOWED = 77, "not allowed"  # EX_NOPERM
    INVALID = 78, "job.toml or supd.toml has problems"  # EX_CONFIG
    TIMED_OUT = 124, "`--timeout` or `--wait-timeout` passed"  # as in timeout(1)
    INTERRUPTED = 130, "Ctrl-C"
    PIPE_CLOSED = 141, "the reader of the output went away (`supctl logs` into `head`)"  # a shell shows SIGPIPE so too
