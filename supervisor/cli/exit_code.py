"""What supctl ends with: the only copy of this table (docs/cli.md explains it to users)."""

import enum


class ExitCode(enum.IntEnum):
    """A supd that refuses a request says itself which of these supctl ends with (`Failure.exit_code`)."""

    OK = 0  # done, the condition is reached, the job succeeded; a read that could answer
    FAILED = 1  # the operation failed
    USAGE = 2
    NOT_FOUND = 3  # no such job, run, rank or generation
    JOB_FAILED = 4
    JOB_STOPPED = 5  # before what was waited for
    UNAVAILABLE = 69  # no supd that answers (EX_UNAVAILABLE)
    NOT_ALLOWED = 77  # EX_NOPERM
    INVALID = 78  # job.toml or supd.toml has problems (EX_CONFIG)
    TIMED_OUT = 124  # --timeout passed, as in timeout(1)
    INTERRUPTED = 130  # Ctrl-C
    PIPE_CLOSED = 141  # the reader of the output went away; a shell shows SIGPIPE the same way
