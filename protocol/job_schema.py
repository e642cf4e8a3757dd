"""The keys of a job.toml: `SCHEMA`, the single list of them with their checks and their meaning.

The reader (protocol/job_file.py), the reference (docs/job-file.md, `supctl help job.toml`) and the schema for editors
come from it.
"""

from protocol.checks import (
    MAX_INT,
    array_of,
    boolean,
    choice,
    duration,
    duration_or_off,
    integer,
    labels,
    limit,
    not_yet,
    patience,
    schema_version,
    string,
    text,
)
from protocol.job import MAX_FILE_BYTES_MAX, MAX_FILE_BYTES_MIN, MAX_NNODES, MAX_NPROC_PER_NODE
from protocol.job_checks import (
    CANNOT_BE_CAUGHT,
    WOULD_ONLY_SUSPEND,
    checkpoint_pattern,
    command,
    env,
    inherit_env,
    job_name,
    limits,
    log_pattern,
    module,
    phases,
    rank_selector,
    signal_name,
)
from protocol.restart_schema import PREEMPTION, RESTART
from protocol.sizes import size, size_text
from protocol.tables import Key, Schema
from protocol.topology_checks import nnodes, node_globs, rank_order, written_nnodes

SCHEMA = Schema(
    top={
        "schema": Key(schema_version, "int", "1", "version of this format"),
        "name": Key(
            job_name, "string", "required", "1 to 63 of `a-z`, `0-9`, `-`; a letter or digit first", is_required=True
        ),
    },
    tables={
        "run": {
            "script": Key(text, "path", "", "a Python script"),
            "module": Key(module, "string", "", "a module, as with `python -m`"),
            "command": Key(command, "[string]", "", "the exact command, used as it is"),
            "args": Key(array_of(string), "[string]", "[]", "appended to it", is_expanded=True),
            "python": Key(
                text,
                "string",
                "the submitter's",
                (
                    "interpreter of `script` and `module`; by default VIRTUAL_ENV's where `supctl "
                    "start` was called, else the first on PATH"
                ),
            ),
            "backend": Key(
                not_yet(choice("auto", "nccl", "gloo"), "mpi", 'write "gloo" for ranks on CPUs, or "auto"'),
                '"auto", "nccl" or "gloo"',
                '"auto"',
                "backend of torch.distributed that the program uses: it is in SUPD_BACKEND, and nccl is refused before "
                "the start on a node with fewer GPUs than ranks; auto: nothing is told or checked, and torch chooses",
            ),
            "workdir": Key(text, "path", "the job file's folder", "working directory of the ranks", is_expanded=True),
            "env": Key(env, "table of strings", "{}", "variables, added last", is_expanded=True),
            "env_file": Key(
                text,
                "path",
                "",
                "a file of `NAME=VALUE` lines, added before `env`; a `# comment` may follow a value in quotes",
            ),
            "inherit_env": Key(
                inherit_env,
                '"submitter", "daemon", "none" or [glob]',
                '"submitter"',
                (
                    "which environment a rank starts from; an array takes only matching variables of "
                    'the submitter\'s: `["HF_*", "PATH"]`; "daemon" is supd\'s own without PYTHON*, '
                    "LD_PRELOAD, NOTIFY_SOCKET, LISTEN_* and SUPD_*"
                ),
            ),
            "limits": Key(
                limits,
                "table",
                "the submitter's",
                (
                    "soft limits `nofile`, `core`, `memlock`, `stack`: a number of 0 or more (bytes, "
                    'where it is a size), or "unlimited"'
                ),
            ),
            "secret_env": Key(
                array_of(text),
                "[glob]",
                '["*TOKEN*", "*KEY*", "*SECRET*", "*PASSWORD*"]',
                "variables whose values are masked wherever they are shown",
            ),
        },
        "topology": {
            "nnodes": Key(
                nnodes,
                'int or "MIN:MAX"',
                "1",
                f"nodes of the job, 1 to {MAX_NNODES}; a range: the least that it runs on, and the most that it takes",
                written=written_nnodes,
            ),
            "nproc_per_node": Key(
                integer(1, MAX_NPROC_PER_NODE, "auto", "gpu", "cpu", "xpu"),
                'int, "auto", "gpu", "cpu" or "xpu"',
                '"auto"',
                "ranks on each node, 1 to 4096; auto: one for each accelerator, 1 where there is none",
            ),
            "extra_nodes": Key(
                choice("standby", "grow"),
                '"standby" or "grow"',
                '"standby"',
                "nodes above the least number: standby: they are spares, of which one takes the place of a node that "
                "is lost; grow: they enlarge the world",
            ),
            "grow_min_interval": Key(
                duration,
                "duration",
                '"15m"',
                "a generation lives at least so long before it is ended to enlarge the world; then that waits for the "
                "next checkpoint, at most 30 minutes",
                field="grow_min_interval_s",
            ),
            "grow_without_checkpoint": Key(
                boolean,
                "bool",
                "false",
                "enlarge the world at once after `grow_min_interval` where there is no [checkpoint], so that no moment "
                "is known at which nothing is lost; false: such a job is not enlarged",
            ),
            "nodes": Key(
                node_globs, "[glob]", "[]", 'names of nodes that may run the job, as in `["gpu-0*"]`; []: every node'
            ),
            "exclude": Key(node_globs, "[glob]", "[]", "names of nodes that are left out"),
            "node_labels": Key(
                labels,
                "table of strings",
                "{}",
                'what a node must have in its `[node] labels`, as in `{ rack = "b" }`',
            ),
            "rank_order": Key(
                rank_order,
                '"name", "join" or "label:KEY"',
                '"name"',
                "which node has the first ranks: by name (node-2 before node-10), by the order in which they came to "
                "the fleet, or by a label; a node keeps its place for as long as it takes part",
            ),
            "role": Key(text, "string", '"default"', "ROLE_NAME of the ranks"),
        },
        "devices": {
            "visibility": Key(
                choice("all", "virtual"),
                '"all" or "virtual"',
                '"all"',
                "virtual: each rank sees one device, and LOCAL_RANK is 0",
            ),
            "omp_num_threads": Key(
                integer(1, 65536, "auto", "inherit"),
                'int, "auto" or "inherit"',
                "1 where a node has several ranks",
                "OMP_NUM_THREADS; auto: the node's CPUs shared out among its ranks; inherit: left alone",
            ),
            "numa_binding": Key(
                choice("none", "node", "socket", "exclusive", "core-complex"),
                '"none", "node", "socket", "exclusive" or "core-complex"',
                '"none"',
                "bind each rank to the CPUs of its GPU's NUMA node, or to those of its socket; exclusive: to whole "
                "cores there that no other GPU's rank has; core-complex: to CPUs there that have one last-level "
                "cache. A node where a rank has no NVIDIA GPU is refused",
            ),
        },
        "rendezvous": {
            "join_timeout": Key(
                patience,
                "duration",
                '"10m"',
                "wait for the least number of nodes; then the run fails (exit code 75). It does not run while only "
                "slots are waited for, which other runs have",
                field="join_timeout_s",
            ),
            "last_call": Key(
                duration,
                "duration",
                '"30s"',
                "further wait for more nodes where there are enough to begin, and only for one that may come",
                field="last_call_s",
            ),
            "master_port": Key(
                integer(1, 65535, "auto"),
                'int or "auto"',
                '"auto"',
                (
                    "port of rank 0 for MASTER_PORT; auto: one that is free, new in each generation, and another one "
                    "where somebody takes it before rank 0 does"
                ),
            ),
        },
        "restart": RESTART,
        "stop": {
            "pre_signal": Key(
                signal_name({"SIGKILL": CANNOT_BE_CAUGHT, "SIGSTOP": WOULD_ONLY_SUSPEND}, is_empty_allowed=True),
                "signal",
                '""',
                'sent first, as "save now"; "": none; not SIGKILL or SIGSTOP',
            ),
            "pre_wait": Key(duration, "duration", '"0s"', "wait after it", field="pre_wait_s"),
            "signal": Key(
                signal_name({"SIGSTOP": WOULD_ONLY_SUSPEND}), "signal", '"SIGTERM"', "asks a rank to end; not SIGSTOP"
            ),
            "grace": Key(duration, "duration", '"30s"', "from `signal` to SIGKILL", field="grace_s"),
            "scope": Key(
                choice("rank", "tree"),
                '"rank" or "tree"',
                '"rank"',
                "whom `signal` goes to first: the rank's main process, or its whole tree",
            ),
            "finish_timeout": Key(
                duration_or_off,
                'duration or "off"',
                '"off"',
                "longest wait for the rest once a rank has ended with 0",
                field="finish_timeout_s",
            ),
            "abort_on_hang": Key(
                boolean,
                "bool",
                "true",
                "a rank that hangs gets SIGABRT first, so that its Python stacks are in the incident",
            ),
        },
        "progress": {
            "source": Key(
                choice("auto", "client", "log", "file", "none"),
                '"auto", "client", "log", "file" or "none"',
                '"auto"',
                (
                    "where the step comes from: `supd.beat` in the program, `log_pattern`, `file`; "
                    "auto: the first of them that shows something; none: no rank is watched, and [hang] does nothing"
                ),
            ),
            "log_pattern": Key(
                log_pattern,
                "regex",
                '""',
                (
                    "is looked for in the newest lines of the ranks' output, without their colours; groups `step`, and "
                    "optionally `total` and `loss`: `'step (?P<step>\\d+)'`. A pattern that takes over 50 ms for a line"
                    " is given up; what stands behind column 2000 of a line is not seen"
                ),
            ),
            "log_ranks": Key(
                rank_selector, "ranks", '"0"', "ranks whose output is looked at: `0`, `0,3`, `8-15`, `!0`, `all`"
            ),
            "file": Key(
                string,
                "path",
                '""',
                (
                    "a file that the program rewrites: a number, or JSON with `step`, `total` and `loss`; rank 0's, or "
                    "with `{rank}` each rank's own. What it holds before the ranks begin shows nothing"
                ),
                is_expanded=True,
            ),
            "total_steps": Key(integer(0, MAX_INT), "int", "0", "steps of the whole run, for the ETA; 0: not known"),
        },
        "hang": {
            "action": Key(
                not_yet(choice("auto", "warn", "restart", "fail"), "dump", 'write "warn"'),
                '"auto", "warn", "restart" or "fail"',
                '"auto"',
                (
                    "what follows when a rank passes a limit; auto: restart where this file gives "
                    "the limit, warn where it is a default"
                ),
            ),
            "init_timeout": Key(
                limit,
                'duration or "off"',
                '"30m"',
                (
                    "limit from the spawn of a rank to its first beat, where it is known to beat: by [progress], or "
                    "since it did so before a restart; where this file gives the limit, also while no rank of the "
                    "node has beaten or written anything"
                ),
                field="init_timeout_s",
            ),
            "step_timeout": Key(
                not_yet(limit, "auto", 'write a limit, as in "10m", or leave it out'),
                'duration or "off"',
                '"off"',
                (
                    "limit from one beat to the next; for a rank without a phase it is that of a phase which another "
                    "rank of the node is in, where that is longer"
                ),
                field="step_timeout_s",
            ),
            "phases": Key(
                phases,
                'table of durations or "off"',
                '{ checkpoint = "30m" }',
                "limits of the phases that the program declares with `supd.phase(NAME)`; others have `step_timeout`, "
                "before the first step `init_timeout` if that is longer",
            ),
        },
        "checkpoint": {
            "marker": Key(
                string,
                "path",
                '""',
                "a file whose number is the last saved step: supd tells progress by it",
                is_expanded=True,
            ),
            "log_pattern": Key(
                checkpoint_pattern,
                "regex",
                '""',
                "a line that tells of a save, with a group `step`: `'saved step (?P<step>\\d+)'`; is looked for in the "
                "output of the ranks of `progress.log_ranks`, as `progress.log_pattern` is",
            ),
        },
        "preemption": PREEMPTION,
        "logs": {
            "max_file": Key(
                size(MAX_FILE_BYTES_MIN, MAX_FILE_BYTES_MAX),
                "size",
                '"200MB"',
                "a rank's output goes on in another file where one is that large and the line is at its end (at most "
                "1 MiB later); 64KiB to 2GiB",
                field="max_file_bytes",
                written=size_text,
            ),
            "keep_files": Key(
                integer(2, 10_000),
                "int",
                "5",
                "finished files that are kept of a rank's standard output, and of its standard error, in each "
                "generation, besides the one that is being written: the first, and the newest ones, all but the newest "
                "gzipped",
            ),
            "keep_generations": Key(
                integer(2, 1_000_000),
                "int",
                "20",
                "generations of the run whose output a node keeps: the first and the last always, and of the others "
                "rather those in which a rank of the node failed, then newer ones",
            ),
            "timestamps": Key(
                boolean,
                "bool",
                "false",
                "`2026-11-29T09:41:00.113Z ` in front of each line, in the file itself: for tools that read it; "
                "`supctl logs --timestamps` needs no such thing",
            ),
        },
    },
    later={
        "": (
            "description",
            "labels",
            "health",
            "hooks",
            "notify",
        ),
        "run": ("preload", "launcher"),
        "devices": ("kind", "numa", "require_free"),
        "rendezvous": ("interface", "master_addr"),
        "progress": ("preset",),
        "hang": ("auto_factor", "auto_min", "auto_warmup", "output_silence"),
        "logs": ("split", "dir", "console"),
    },
)
