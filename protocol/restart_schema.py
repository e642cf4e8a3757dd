"""The keys of a job.toml that say when its run starts again, and what happens where its nodes are taken away."""

from protocol.checks import array_of, boolean, choice, duration, integer, not_yet
from protocol.job_checks import command, exit_codes, notice_signal, pause
from protocol.tables import Key

RESTART = {
    "policy": Key(
        choice("on-failure", "never"),
        '"on-failure" or "never"',
        '"on-failure"',
        "never: the first failure ends the run",
    ),
    "max_restarts": Key(
        integer(-1, 1_000_000),
        "int",
        "10",
        "restarts after failures of the program, within `restart_window`; -1: no limit. Restarts that an "
        "operator, a planned change or a preemption brings are not counted",
    ),
    "max_infra_restarts": Key(
        integer(-1, 1_000_000),
        "int",
        "-1",
        "restarts after losses of nodes and runners and after spawns that fail by the node's fault, within "
        "`restart_window`; -1: no limit",
    ),
    "restart_window": Key(
        duration,
        "duration",
        '"0s"',
        'only restarts of the last so long count for these two; "0s": those of the whole run. Time in which '
        "the coordinator is away does not pass",
        field="restart_window_s",
    ),
    "no_progress_limit": Key(
        integer(0, 1_000_000),
        "int",
        "3",
        "so many failures in a row of one cause at one step end the run (exit code 7), where the step is "
        "known; 0: no limit",
    ),
    "exclude_node_after": Key(
        integer(0, 50),
        "int",
        "2",
        "after so many incidents within an hour that began on one node, in whichever runs, this job does "
        "without the node for a while where it can: 15 minutes, then twice as long each time, at most a day; "
        "0: never",
    ),
    "count_membership": Key(
        boolean,
        "bool",
        "false",
        "charge what nodes that come and go bring to `max_restarts` (enlarging, scaling, lost nodes), as torchrun does",
    ),
    "on_budget_spent": Key(
        choice("fail", "hold"),
        '"fail" or "hold"',
        '"fail"',
        "what follows where a budget is spent or the run makes no progress; hold: it waits with its nodes for "
        "`supctl resume`",
    ),
    "stable_after": Key(
        duration,
        "duration",
        '"10m"',
        ('running so long, once all ranks had started, counts as progress where no checkpoint is seen; "0s": never'),
        field="stable_after_s",
    ),
    "backoff": Key(
        duration,
        "duration",
        '"5s"',
        "wait before a restart, doubling; none for a run's first failure and the first one after progress",
        field="backoff_s",
    ),
    "backoff_max": Key(duration, "duration", '"2m"', "longest such wait", field="backoff_max_s"),
    "on_startup_failure": Key(
        choice("fail", "restart"),
        '"fail" or "restart"',
        '"fail"',
        "for a failure before all ranks of generation 0 have started",
    ),
    "start_after": Key(
        duration,
        "duration",
        '"10s"',
        "a rank that has written nothing to standard output counts as started after so long alive",
        field="start_after_s",
    ),
    "never_on_exit": Key(exit_codes, "[int]", "[]", "exit codes (1 to 255) after which the run fails at once"),
    "always_on_exit": Key(exit_codes, "[int]", "[]", "exit codes that always restart and are not charged"),
}

PREEMPTION = {
    "signals": Key(
        array_of(notice_signal),
        "[signal]",
        "[]",
        "SIGTERM, SIGUSR1, SIGUSR2, SIGHUP or SIGINT: one that supd or the run's runner on a node is sent "
        "says that the node is about to be taken away",
    ),
    "notice_command": Key(
        command,
        "[string]",
        "",
        "is run on every node again and again; ends it with 0, the node is about to be taken away; with "
        "another code later, that is withdrawn",
    ),
    "notice_interval": Key(
        pause, "duration", '"5s"', "from one run of `notice_command` to the next", field="notice_interval_s"
    ),
    "lead_time": Key(
        duration,
        "duration",
        '"0s"',
        'from the notice until the node is gone: `stop.pre_wait` is cut so that `stop.grace` fits in; "0s": not known',
        field="lead_time_s",
    ),
    "then": Key(
        not_yet(choice("exit", "wait-for-nodes"), "requeue", 'write "exit", or "wait-for-nodes"'),
        '"exit" or "wait-for-nodes"',
        '"exit"',
        "what follows where too few nodes are left: the run is over, or it waits for others, without a limit",
    ),
    "exit_code": Key(
        integer(1, 255),
        "int",
        "75",
        "what `start --follow` and `logs --exit-status` end with for a run that is over by a preemption",
    ),
}
