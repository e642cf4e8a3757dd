"""suprun's options: `OPTIONS`, the single list of them with what each means, and where that is not torchrun's meaning.

They are those of torchrun 2.13 (torch.distributed.run) and a few of our own. The reader of a command line
(supervisor/suprun/line.py), `suprun --help`, docs/from-torchrun.md and the manual page come from it.
"""

import enum
from typing import NamedTuple

import msgspec


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """The value of every option, as torchrun's parser has it: its names, its types, its defaults."""

    nnodes: str = "1:1"
    nproc_per_node: str = "1"
    rdzv_backend: str = "static"
    rdzv_endpoint: str = ""
    rdzv_id: str = "none"
    rdzv_conf: str = ""
    standalone: bool = False
    max_restarts: int = 0
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    event_log_handler: str = "null"
    role: str = "default"
    module: bool = False
    no_python: bool = False
    run_path: bool = False
    log_dir: str | None = None
    redirects: str = "0"
    tee: str = "0"
    local_ranks_filter: str = ""
    duplicate_stdout_filters: list[str] = []
    duplicate_stderr_filters: list[str] = []
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int | None = None
    local_addr: str | None = None
    logs_specs: str | None = None
    numa_binding: str | None = None
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    shutdown_timeout: int | None = None
    virtual_local_rank: bool = False
    # Ours:
    name: str = ""
    insecure: bool = False
    hide_slurm: bool = False
    print_job: bool = False
    version: bool = False
    help: bool = False


class Form(enum.Enum):
    """What stands behind an option."""

    SWITCH = "nothing"
    TEXT = "text"
    WHOLE = "a whole number"
    NUMBER = "a number"
    WORDS = "words with commas between"


class Option(NamedTuple):
    """One option. `names` are its spellings with dashes; each may be written with `_` between its words as well."""

    names: tuple[str, ...]
    meaning: str
    form: Form = Form.TEXT
    value: str = ""  # of a value, for people
    choices: tuple[str, ...] = ()
    has_variable: bool = True  # PET_<DEST> is its default
    differs: str = ""  # from torchrun, and why

    @property
    def dest(self) -> str:
        """The field of `Flags`."""
        return self.names[-1].removeprefix("--").replace("-", "_")

    @property
    def variable(self) -> str:
        """The environment variable of its default, "" where it has none."""
        return f"PET_{self.dest.upper()}" if self.has_variable else ""

    @property
    def spellings(self) -> tuple[str, ...]:
        """All of them: those with dashes first."""
        long = self.names[-1]
        other = "--" + long.removeprefix("--").replace("-", "_")
        return self.names if other == long else (*self.names, other)


class Group(NamedTuple):
    """Options that belong together."""

    title: str
    options: tuple[Option, ...]


GROUPS = (
    Group(
        "Nodes and ranks",
        (
            Option(
                ("--nnodes",),
                "nodes of the job; a range: the least it runs on, and the most it takes",
                value="N|MIN:MAX",
            ),
            Option(
                ("--nproc-per-node",),
                "ranks on each node; auto: one for each accelerator, else one for each CPU",
                value="N|auto|cpu|gpu|xpu",
                differs="CPUs are counted by affinity and by the quota of the container. A private backend's name is "
                "refused: write the number.",
            ),
            Option(
                ("--role",),
                "ROLE_NAME of the ranks",
                value="NAME",
                differs="Lines on the console begin with node and rank, not with the role.",
            ),
            Option(
                ("--virtual-local-rank",),
                "each rank sees one device, and LOCAL_RANK is 0",
                Form.SWITCH,
            ),
            Option(
                ("--numa-binding",),
                "bind each rank to the CPUs near its GPU: node, socket, exclusive or core-complex",
                value="MODE",
                differs="No numactl is needed. Without a GPU for each rank it is refused in one line; torchrun ends "
                "with a traceback. Numbers of GPUs are in the order of their PCI addresses.",
                choices=("node", "socket", "exclusive", "core-complex"),
                has_variable=False,
            ),
        ),
    ),
    Group(
        "How the nodes find each other",
        (
            Option(("--standalone",), "one node, and nothing of the network is needed", Form.SWITCH),
            Option(
                ("--rdzv-backend",),
                "static: ranks by --node-rank; c10d: nodes come and go",
                value="static|c10d",
                differs="Both are served by supd itself; there is no TCPStore, and nothing is unpickled. etcd and "
                "etcd-v2 are refused: no other service is needed.",
            ),
            Option(
                ("--rdzv-endpoint",),
                "the node that coordinates, which is the one with this address; the port is 29400 where none is given",
                value="HOST[:PORT]",
                differs="The port is that of the fleet, and all of its traffic between nodes but the ranks' own goes "
                "there, by mutual TLS. MASTER_PORT is another one, free on rank 0's node and new in each generation.",
            ),
            Option(
                ("--rdzv-id",),
                "name of the job, for TORCHELASTIC_RUN_ID and for people",
                value="ID",
                differs="Two runs of the same name do not meet each other's state: each start is a run of its own.",
            ),
            Option(
                ("--rdzv-conf",),
                "KEY=VALUE with commas between: join_timeout, last_call_timeout, timeout (static), is_host",
                value="K=V,…",
                differs="Seconds may have decimals. Other keys of torchrun are accepted without effect, unknown ones "
                "are told; `store_type=file` is refused.",
            ),
            Option(("--node-rank",), "place of this node, from 0; static rendezvous only", Form.WHOLE, "N"),
            Option(
                ("--master-addr",),
                "node 0, where no endpoint is given; static rendezvous only",
                value="HOST",
                differs="It is the endpoint. MASTER_ADDR is the address by which rank 0's node was reached.",
            ),
            Option(
                ("--master-port",),
                "port there; 29500 where none is given; static rendezvous only",
                Form.WHOLE,
                "PORT",
                differs="It is the endpoint's port, which cannot be the ranks' as well: MASTER_PORT is another one.",
            ),
            Option(
                ("--local-addr",),
                "address of this node for the others",
                value="HOST",
                differs="By default the address by which this node reaches the endpoint, not its full host name, which "
                "other nodes may not know.",
            ),
        ),
    ),
    Group(
        "What runs",
        (
            Option(("-m", "--module"), "the script is a module, as with `python -m`", Form.SWITCH),
            Option(("--no-python",), "the script is a program of its own", Form.SWITCH),
            Option(
                ("--run-path",),
                "the script is run by its path; wins over -m and --no-python",
                Form.SWITCH,
                differs="It gets an interpreter of its own, as any script does: nothing of suprun is in it, and "
                "--start-method has nothing to start.",
            ),
            Option(
                ("--start-method",),
                "how --run-path starts ranks; no effect",
                value="METHOD",
                choices=("spawn", "fork", "forkserver"),
                differs="Ranks are always programs of their own.",
            ),
        ),
    ),
    Group(
        "Failures and the end",
        (
            Option(
                ("--max-restarts",),
                "restarts after failures",
                Form.WHOLE,
                "N",
                differs="One count for the whole fleet: torchrun has one on each node, and takes from it when nodes "
                "come or go. From the second failure in a row on there is a wait before a restart.",
            ),
            Option(
                ("--shutdown-timeout",),
                "seconds from SIGTERM to SIGKILL; default: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30; "
                "25 in a step of Slurm",
                Form.WHOLE,
                "S",
                differs="Honoured on every path. torchrun has 30 s whatever is said here when it restarts.",
            ),
            Option(("--signals-to-handle",), "signals that end the job gracefully", value="SIG,…"),
            Option(
                ("--monitor-interval",),
                "seconds from one look at the ranks to the next; no effect",
                Form.NUMBER,
                "S",
                differs="The end of a rank is seen at once, nothing is polled.",
            ),
        ),
    ),
    Group(
        "Output",
        (
            Option(
                ("--log-dir",),
                "folder of the ranks' output",
                value="DIR",
                differs="Nothing in it is deleted: torchrun removes the folder of an attempt whose number comes again.",
            ),
            Option(
                ("-r", "--redirects"),
                "what goes to files and not to the console: 0 nothing, 1 output, 2 errors, 3 both; or by local rank: "
                "0:3,1:1",
                value="MASK",
                differs="Local ranks may have several digits.",
            ),
            Option(
                ("-t", "--tee"),
                "what goes to files and to the console, in the same form",
                value="MASK",
                differs="Lines on the console are whole, and begin with node and rank. A console that nobody reads "
                "does not stop the job. Local ranks may have several digits.",
            ),
            Option(("--local-ranks-filter",), "local ranks that are shown on the console", value="N,…"),
            Option(
                ("--duplicate-stdout-filters",),
                "lines of output with one of these words are written to one more file; `,,` is a comma",
                Form.WORDS,
                "W,…",
            ),
            Option(
                ("--duplicate-stderr-filters",),
                "the same for errors",
                Form.WORDS,
                "W,…",
            ),
            Option(
                ("--logs-specs",),
                "a plugin that says where output goes; no effect",
                value="NAME",
                has_variable=False,
                differs="suprun imports no torch, and none of its plugins.",
            ),
            Option(
                ("--event-log-handler",),
                "where events go; no effect",
                value="NAME",
                differs="What happened is told on the console.",
            ),
        ),
    ),
    Group(
        "suprun's own",
        (
            Option(
                ("--name",),
                "name of the job; default: --rdzv-id, else that of the script",
                value="NAME",
                has_variable=False,
            ),
            Option(
                ("--insecure",),
                "no credential between the nodes: whoever reaches the port can run programs as you",
                Form.SWITCH,
                has_variable=False,
            ),
            Option(
                ("--hide-slurm",),
                "ranks see no variable that begins with SLURM, for a framework that would go by these",
                Form.SWITCH,
                has_variable=False,
            ),
            Option(
                ("--print-job",),
                "print the job file that says the same, for `supctl start`; run nothing",
                Form.SWITCH,
                has_variable=False,
            ),
            Option(("--version",), "show the version", Form.SWITCH, has_variable=False),
            Option(("-h", "--help"), "show this help", Form.SWITCH, has_variable=False),
        ),
    ),
)

OPTIONS = {option.dest: option for group in GROUPS for option in group.options}

BY_SPELLING = {spelling: option for option in OPTIONS.values() for spelling in option.spellings}
