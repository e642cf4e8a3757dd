"""What a job is: the validated content of a job.toml, and what `supctl start` adds to it.

A key's default is its field's. How the file is read: protocol/job_file.py; what its keys mean: protocol/job_schema.py.
"""

import msgspec

RESERVED_ENV = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_NAME",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE",
        "TORCHELASTIC_ERROR_FILE",
    }
)
"""Variables of a worker that supd sets itself, as torchrun does; and all that begin with RESERVED_ENV_PREFIX."""

RESERVED_ENV_PREFIX = "SUPD_"


def is_reserved(name: str) -> bool:
    """Whether supd sets this variable itself for every rank."""
    return name in RESERVED_ENV or name.startswith(RESERVED_ENV_PREFIX)


LABELS_MAX = 64
LABEL_MAX_CHARS = 100
"""Of a node: its labels, and the characters of the name or value of one."""

MAX_NNODES = 10_000
MAX_NPROC_PER_NODE = 4096

PHASE_BYTES_MAX = 32
"""Of the name of a phase: the heartbeat page has room for no more."""

LIMITS = ("nofile", "core", "memlock", "stack")


class RunTable(msgspec.Struct, frozen=True, kw_only=True):
    """[run]: what every rank executes. Exactly one of `script`, `module` and `command` is given."""

    script: str = ""
    module: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    python: str = ""  # "": the submitter's
    backend: str = "auto"  # of the process group: "nccl", "gloo"; auto: torch's choice
    workdir: str = ""  # "": the folder of the job file
    env: dict[str, str] = {}
    env_file: str = ""
    inherit_env: str | tuple[str, ...] = "submitter"  # "submitter", "daemon", "none", or globs over the submitter's
    limits: dict[str, int] = {}  # nofile, core, memlock, stack; -1: unlimited
    secret_env: tuple[str, ...] = ("*TOKEN*", "*KEY*", "*SECRET*", "*PASSWORD*")  # globs; masked wherever shown


class TopologyTable(msgspec.Struct, frozen=True, kw_only=True):
    """[topology]: how many nodes and ranks, and which nodes."""

    nnodes: tuple[int, int] = (1, 1)  # least and most
    nproc_per_node: int | str = "auto"  # or "auto", "gpu", "cpu", "xpu"
    extra_nodes: str = "standby"  # those above the least: spares; or "grow": they enlarge the world
    nodes: tuple[str, ...] = ()  # globs of names; (): every node
    exclude: tuple[str, ...] = ()
    node_labels: dict[str, str] = {}  # that a node must have
    rank_order: str = "name"  # "join", "label:KEY"
    role: str = "default"
    grow_min_interval_s: float = 900.0  # a generation lives at least so long before it ends to enlarge the world
    grow_without_checkpoint: bool = False  # enlarge it at once where there is no [checkpoint], hence no safe point

    @property
    def nnodes_wanted(self) -> int:
        """As many as it launches on where there are enough."""
        return self.nnodes[1] if self.extra_nodes == "grow" else self.nnodes[0]


class RendezvousTable(msgspec.Struct, frozen=True, kw_only=True):
    """[rendezvous]: how the ranks find each other."""

    master_port: int | str = "auto"  # or "auto": one that is free, new each generation
    join_timeout_s: float = 600.0  # wait for the least number of nodes; then the run fails
    last_call_s: float = 30.0  # further wait for more of them, as long as one may come


class DevicesTable(msgspec.Struct, frozen=True, kw_only=True):
    """[devices]: what a rank sees of the node's accelerators and CPUs."""

    visibility: str = "all"  # or "virtual": one device a rank
    omp_num_threads: int | str = ""  # "": 1 where a node has more than one rank; or "auto", "inherit"
    numa_binding: str = "none"  # or "node", "socket", "exclusive", "core-complex": CPUs near the rank's GPU


class RestartTable(msgspec.Struct, frozen=True, kw_only=True):
    """[restart]: what happens after a failure."""

    policy: str = "on-failure"  # or "never"
    max_restarts: int = 10  # -1: no limit
    stable_after_s: float = 600.0
    backoff_s: float = 5.0
    backoff_max_s: float = 120.0
    on_startup_failure: str = "fail"  # or "restart"
    start_after_s: float = 10.0
    max_infra_restarts: int = -1  # after losses of nodes and runners, fences, spawns that fail by the node's fault
    restart_window_s: float = 0.0  # within which both budgets count; 0: the whole run
    no_progress_limit: int = 3  # failures in a row of one cause at one step; 0: no limit
    exclude_node_after: int = 2  # incidents within an hour whose root is on one node; 0: never
    count_membership: bool = False  # nodes that come and go are charged to `max_restarts`, as torchrun does
    on_budget_spent: str = "fail"  # or "hold"
    never_on_exit: tuple[int, ...] = ()
    always_on_exit: tuple[int, ...] = ()


class StopTable(msgspec.Struct, frozen=True, kw_only=True):
    """[stop]: how workers are ended, on every path. Signals are names, as in `signal.Signals`."""

    pre_signal: str = ""  # "": none
    pre_wait_s: float = 0.0
    signal: str = "SIGTERM"
    grace_s: float = 30.0
    scope: str = "rank"  # whom `signal` goes to first: the rank's main process, or its "tree"
    finish_timeout_s: float | None = None  # None: "off"
    abort_on_hang: bool = True  # a rank that hangs gets SIGABRT first, to leave its stacks


class ProgressTable(msgspec.Struct, frozen=True, kw_only=True):
    """[progress]: how the step of a rank is known."""

    source: str = "auto"  # "client" (supd.beat), "log", "file", "none"; auto: the first of them that shows something
    log_pattern: str = ""  # with a group `step`; `total` and `loss` are optional
    log_ranks: str = "0"  # ranks whose lines are looked at, like 0 or 0,3 or 8-15 or !0 or all
    file: str = ""  # a number, or JSON with "step", "total" and "loss", rewritten by the program
    total_steps: int = 0  # 0: not known


class HangTable(msgspec.Struct, frozen=True, kw_only=True):
    """[hang]: how long a rank may show no progress, and what happens then."""

    action: str = "auto"  # "warn", "restart", "fail"; auto: restart where the job wrote the limit, else warn
    init_timeout_s: float | None = 1800.0  # from the spawn to the first beat; None: "off"
    step_timeout_s: float | None = None  # between two beats; None: "off"
    phases: dict[str, float | None] = msgspec.field(default_factory=lambda: {"checkpoint": 1800.0})  # limits in
    # seconds of the phases that the program declares; None: "off"


class CheckpointTable(msgspec.Struct, frozen=True, kw_only=True):
    """[checkpoint]: how a save is noticed."""

    marker: str = ""  # file whose number is the last saved step
    log_pattern: str = ""  # with a group `step`: a line of the ranks' output that tells of a save

    @property
    def is_watched(self) -> bool:
        """Whether there is a way to see a save, hence safe points."""
        return bool(self.marker or self.log_pattern)


class PreemptionTable(msgspec.Struct, frozen=True, kw_only=True):
    """[preemption]: how a node is told that it will be taken away, and what follows."""

    signals: tuple[str, ...] = ()  # to supd or the runner there
    notice_command: tuple[str, ...] = ()  # ends with 0: notice; with another code later: it is withdrawn
    notice_interval_s: float = 5.0
    lead_time_s: float = 0.0  # from the notice until the node is gone; 0: not known
    then: str = "exit"  # where too few nodes are left: the run is over, or it "wait-for-nodes"
    exit_code: int = 75  # of `start --follow` and `logs --exit-status` for a run that was preempted


MAX_FILE_BYTES_MIN, MAX_FILE_BYTES_MAX = 64 << 10, 2 << 30
"""Of `[logs] max_file`: a smaller one would be little else than file names; gzip has 32 bits for the size of one."""


class LogsTable(msgspec.Struct, frozen=True, kw_only=True):
    """[logs]: how the output of the ranks is kept. The limits are those of each node."""

    max_file_bytes: int = 200_000_000  # of one file of a stream; then it is rotated
    keep_files: int = 5  # rotated ones of a stream: the first, and the newest ones
    keep_generations: int = 20  # the first, the last ones, and rather those in which a rank failed
    timestamps: bool = False  # in front of each line


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A whole job.toml, validated, with every default filled in."""

    name: str
    schema: int = 1
    run: RunTable
    topology: TopologyTable = TopologyTable()
    devices: DevicesTable = DevicesTable()
    rendezvous: RendezvousTable = RendezvousTable()
    restart: RestartTable = RestartTable()
    stop: StopTable = StopTable()
    progress: ProgressTable = ProgressTable()
    hang: HangTable = HangTable()
    checkpoint: CheckpointTable = CheckpointTable()
    preemption: PreemptionTable = PreemptionTable()
    logs: LogsTable = LogsTable()
    origins: dict[str, str] = {}  # key path -> who gave it: "file", "--set", "--name", "--"; others are defaults

    def is_written(self, key: str) -> bool:
        """Whether the job gives this key itself, like "hang.step_timeout" or "hang.phases.eval"."""
        return key in self.origins


class Submitter(msgspec.Struct, frozen=True, kw_only=True):
    """What `supctl start` adds to the file: the place and environment it was called in."""

    folder: str  # the job file's folder, absolute: relative paths of the file start here
    source: str  # the job file's path as the user gave it, for messages
    python: str  # the submitter's interpreter: VIRTUAL_ENV's, else the first `python3` or `python` on PATH
    env: dict[bytes, bytes]  # byte for byte, as it was
    limits: dict[str, int]  # soft limits: nofile, core, memlock, stack; -1: unlimited
    umask: int
    user: str
    allow_mixed: bool = False  # launch although nodes would not run the same
    contract: dict[str, str] = {}  # of torchrun's variables, what suprun's command line says of them


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a runner needs to know of a run besides its assignment; the same in all generations."""

    run: str
    spec: JobSpec
    submitter: Submitter
    revision: int = 0  # counts up with each `restart --reload`; a runner serves the one that it was welcomed with
