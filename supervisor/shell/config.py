"""What supd is told: supd.toml, every key of it optional (meaning and defaults: docs/supd-toml.md).

Problems have the codes of `protocol.tables.Kind` behind an S.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protocol.addresses import PEER_PORT, JoinEntry
from protocol.checks import choice, duration, integer, matching, schema_version, text
from protocol.errors import About, ConfigInvalid
from protocol.job import LABEL_MAX_CHARS, LABELS_MAX, MAX_NPROC_PER_NODE
from protocol.sizes import size
from protocol.tables import Found, Key, Kind, Schema, check_tables
from protocol.timing import ASK_AGAIN_S, ASK_S, DRIFT, FRESH, GAP_S, KILL_S, ROUND_TRIP_S, Timing
from protocol.toml_text import MAX_FILE_BYTES, read_toml
from supervisor.shell import config_checks as checks
from supervisor.shell.config_rules import check_rules, peer_of, timing_of
from supervisor.shell.paths import (
    default_control_path,
    ensure_private_dir,
    home,
    host_name,
    socket_path_problem,
    xdg_folder,
)
from supervisor.shell.runner_start import Embedded

MAX_DISK_BYTES, MAX_DISK_MIN_BYTES = 50 << 30, 1 << 20

MIN_FREE = 0, 5.0
"""Bytes, or percent."""

MAX_JOBS_MAX = 1000

KEEP_RUNS, KEEP_RUNS_MAX = 50, 1000
KEEP_DAYS, KEEP_DAYS_MAX = 30, 3650


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything supd needs to know to begin; all paths are absolute."""

    found: Found = field(repr=False, compare=False)  # the file that was read: shows problems where they stand
    node: str
    labels: Mapping[str, str]
    devices: int | None  # slots to allot to runs; None: one for each accelerator, without any no limit
    max_jobs: int  # runs at once on this node; 0: no limit
    control: Path  # supctl's socket
    peer: tuple[str, int]  # where we listen for peers; host "": all interfaces; port 0: any that is free
    peer_is_default: bool  # nobody asked for this port: where it is taken, the next free one will do
    advertise: str  # a name or an address by which peers reach us; "": not given
    interface: str  # whose address that is; "": not given
    runner_ports: tuple[int, int] | None  # first and last of those for our runners; None: any that are free
    fleet: str
    join: tuple[JoinEntry, ...]  # nodes to ask, first the one that hosts; (): a fleet of one
    credential: Path
    timing: Timing  # of the leases of runs that this supd's coordinator begins
    on_isolation: str  # "fence" or "keep"
    state_dir: Path
    logs_dir: Path
    max_disk_bytes: int | None  # of the state folder and all output; None: no limit
    min_free_bytes: int  # where the output lies; this or the next one is 0
    min_free_percent: float
    keep_runs: int  # finished ones
    keep_days: int  # since their end
    ready_runners: int
    orphan_wait_s: float
    linger_s: float
    cgroup: str  # "auto" or "off"
    log_level: str  # "debug", "info", "warning" or "error"
    log_format: str  # "auto": text on a terminal, JSON elsewhere; "text" or "json"
    embedded: Embedded | None = None  # in suprun

    def make_private(self, path: Path, *key: str) -> None:
        """Make a folder that a key names, as `ensure_private_dir` does; what is wrong is shown at that key."""
        try:
            ensure_private_dir(path)
        except ConfigInvalid as exc:
            for problem in exc.problems:
                problem.key, problem.about = ".".join(key), About(key)
            raise ConfigInvalid(self.found.source, self.found.settled(exc.problems)) from None


_NAME = matching(
    "[A-Za-z0-9][A-Za-z0-9._-]{0,62}", "a name", "write 1 to 63 of A-Z, a-z, 0-9, `.`, _ and -, a letter or digit first"
)

SCHEMA = Schema(
    top={
        "schema": Key(schema_version, "int", "1", "version of this format"),
    },
    tables={
        "node": {
            "name": Key(
                _NAME,
                "string",
                "the short host name",
                "1 to 63 of `A-Z`, `a-z`, `0-9`, `.`, `_`, `-`; a letter or digit first; no other node of the "
                "fleet has it",
            ),
            "labels": Key(
                checks.labels,
                "table of strings",
                "{}",
                'what jobs can ask for by `topology.node_labels` and order ranks by, as in `{ rack = "b" }`; at most '
                f"{LABELS_MAX}, of at most {LABEL_MAX_CHARS} characters each",
            ),
            "devices": Key(
                integer(0, MAX_NPROC_PER_NODE, "auto"),
                '"auto" or int',
                '"auto"',
                "slots that runs share, one a rank (`nproc_per_node`); no slot is given to two of them. auto: one for "
                "each accelerator, those of the CUDA_VISIBLE_DEVICES that supd was started with, or else all; without "
                f"any there is no limit. A number (0 to {MAX_NPROC_PER_NODE}): so many, spread evenly over the "
                "accelerators where there are some; 0 keeps runs away",
            ),
            "max_jobs": Key(
                integer(0, MAX_JOBS_MAX),
                "int",
                "0",
                "how many runs may have this node at once, be they spares; 0: as many as there are slots for",
            ),
        },
        "listen": {
            "control": Key(
                text,
                "path",
                "`$XDG_RUNTIME_DIR/supd/control.sock`",
                (
                    "supctl's socket, 0600 in a folder of 0700; at most 107 bytes long. Where "
                    "XDG_RUNTIME_DIR is unset, not a folder or not ours: "
                    "`/tmp/supd-UID/control.sock` (TMPDIR instead of /tmp where that is set)"
                ),
            ),
            "peer": Key(
                checks.listen_address,
                '"HOST:PORT"',
                '"127.0.0.1:29410"',
                (
                    "where runners and the other nodes of the fleet find this one. The default gives way to the next "
                    'free port; with `fleet.join` the default is `"*:29410"`, all interfaces, and gives way to '
                    "nothing. IPv6 stands in brackets; port 0 is any that is free, and not for a fleet"
                ),
            ),
            "advertise": Key(
                checks.own_host,
                "string",
                "the address by which the host of the fleet was reached",
                "a name or an address, without a port, by which the other nodes reach this one; ranks get that of rank "
                "0 as MASTER_ADDR. The host of the fleet tries it at the join",
            ),
            "interface": Key(
                checks.interface,
                "string",
                "no particular one",
                "instead of `advertise`: the network interface whose address that is, as `ip link` names it",
            ),
            "runners": Key(
                checks.port_range,
                '"auto" or "LOW-HIGH"',
                '"auto"',
                "ports on which runners listen for those of the run's other nodes, one a runner, as in "
                f'"29500-29599": at least {checks.RUNNER_PORTS_MIN}, open between all nodes, best none that the kernel '
                "gives to anybody (`net.ipv4.ip_local_port_range`). auto: any that are free",
            ),
        },
        "fleet": {
            "name": Key(_NAME, "string", '"default"', "formed like a node's"),
            "join": Key(
                checks.join,
                '["HOST:PORT"]',
                "[]",
                "nodes of the fleet: the first one hosts the coordinator, so it is the same on every node, its own "
                f"list included; without a port it is {PEER_PORT}. IPv6 stands in brackets; at most {checks.JOIN_MAX}. "
                "[]: this node is a fleet of its own",
            ),
            "credential": Key(
                text,
                "path",
                "`fleet.pem` in the state folder",
                "key and certificate of the fleet, the same on every node. The host makes it 0600 on first use; "
                "copy it to the others (`supd fleet key show`)",
            ),
        },
        "lease": {
            "renew": Key(
                checks.lease_time, "duration", '"1s"', "between two reports of a runner, each with its whole state"
            ),
            "alone": Key(
                checks.lease_time,
                "duration",
                '"2s"',
                "a runner that has got no answer for so long asks its witnesses; at least twice `renew`",
            ),
            "suspect": Key(
                checks.lease_time,
                "duration",
                '"3s"',
                "a node whose runner was not heard for so long is suspect, and its witnesses are asked; at least "
                f"`alone`, and over {GAP_S:g}s",
            ),
            "fence": Key(
                checks.lease_time,
                "duration",
                '"4.5s"',
                "a runner ends its ranks so long after it has sent the last report that was answered, unless all its "
                f"witnesses give their word meanwhile; at least `alone` + {ASK_S + ROUND_TRIP_S:g}s",
            ),
            "ttl": Key(
                checks.lease_time,
                "duration",
                '"5s"',
                "the lease: so long after the coordinator's last answer a silent node is lost, once a witness agrees. "
                f"{1 - DRIFT:g} x `ttl` is at least {1 + DRIFT:g} x `fence` + {KILL_S:g}s, and `ttl` at least "
                f"`suspect` + {ROUND_TRIP_S + ASK_AGAIN_S:g}s",
            ),
            "word": Key(
                checks.lease_time,
                "duration",
                '"2s"',
                "a witness that the coordinator has asked about a runner gives that one no word for so long; at least "
                f"{(ROUND_TRIP_S + ASK_AGAIN_S) / FRESH:.2f}s",
            ),
            "on_isolation": Key(
                choice("fence", "keep"),
                '"fence" or "keep"',
                '"fence"',
                "fence: a node that is cut off ends its ranks, so that the run can go on without it. keep: it never "
                "does, and is only replaced once it is proven that nothing runs there",
            ),
        },
        "state": {
            "dir": Key(
                text,
                "path",
                "`$XDG_STATE_HOME/supd/HOST` (`~/.local/state/supd/HOST`)",
                "journal, runners, runs; a folder of 0700 that no other node uses",
            ),
            "logs_dir": Key(text, "path", "`logs` in the state folder", "output of the ranks"),
            "max_disk": Key(
                size(MAX_DISK_MIN_BYTES, checks.ROOM_MAX_BYTES, is_off_allowed=True),
                'size or "off"',
                '"50GiB"',
                "how much the state folder and all output may take: beyond it, output of finished runs is removed, the "
                "oldest first, but never that of the run that ended last, nor of one that has a runner here",
            ),
            "min_free": Key(
                checks.room,
                'size or "N%"',
                '"5%"',
                'how much of the disk of the output is to be free: the same is done below it; "0%": off',
            ),
            "keep_runs": Key(
                integer(1, KEEP_RUNS_MAX),
                "int",
                str(KEEP_RUNS),
                f"how many finished runs are remembered (1 to {KEEP_RUNS_MAX:,}): older ones are forgotten, with their "
                "events and, on each node, their output. A node removes what is beyond its own `keep_runs` and "
                "`keep_days`, once the coordinator has forgotten the run",
            ),
            "keep_days": Key(
                integer(1, KEEP_DAYS_MAX),
                "int",
                str(KEEP_DAYS),
                f"how long, since its end (1 to {KEEP_DAYS_MAX:,} days). The run that ended last is always remembered",
            ),
        },
        "workers": {
            "ready_runners": Key(
                integer(0, 8),
                "int",
                "1",
                "idle runners kept ready (0 to 8), so that a start waits for no interpreter; 0: off",
            ),
            "orphan_wait": Key(
                duration,
                "duration",
                '"1h"',
                "how long a runner goes on waiting for a supd once its ranks are at an end or stopped by a failure",
            ),
            "linger": Key(duration, "duration", '"60s"', "the same after all ranks have finished"),
            "cgroup": Key(
                choice("auto", "off"), '"auto" or "off"', '"auto"', "use a cgroup for each runner where we may"
            ),
        },
        "log": {
            "level": Key(
                choice("debug", "info", "warning", "error"),
                '"debug", "info", "warning" or "error"',
                '"info"',
                "of supd's own log, on stderr",
            ),
            "format": Key(
                choice("auto", "text", "json"),
                '"auto", "text" or "json"',
                '"auto"',
                "auto: text on a terminal, JSON elsewhere",
            ),
        },
    },
    later={
        "": ("http", "metrics", "access", "defaults"),
        "listen": ("http",),
        "fleet": ("discover",),
        "workers": ("survive_restart", "kill_orphans"),
    },
)


def load_config(path: Path | None, environ: Mapping[str, str], *, dev_dir: Path | None = None) -> Config:
    """The configuration of `path`, else of the user's own supd.toml where there is one, else the defaults.

    Relative paths of a file start at its folder, and `~/` at the home folder. With `dev_dir` (supd run --dev)
    everything lies below that folder, it is a fleet of one whose port is any that is free, and the user's own file is
    not read.
    Makes nothing and raises ConfigInvalid with every problem.
    """
    source = path
    if path is None and dev_dir is None:
        usual = xdg_folder(environ, "XDG_CONFIG_HOME", ".config") / "supd" / "supd.toml"
        source = usual if os.path.lexists(usual) else None
    found = Found("S", str(source or "supd's defaults"))
    values = _read(source, found) if source else {}
    check_rules(values, found)
    if not found.problems:
        config = _settle(values, environ, source.absolute().parent if source else Path("/"), dev_dir, found)
        problem = socket_path_problem(config.control)
        if problem is None:
            return config
        found.problems.append(problem)
    raise ConfigInvalid(found.source, found.settled(found.problems))


def _read(source: Path, found: Found) -> dict[str, Any]:
    try:
        with source.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as exc:
        hint = "name another file with --config, or run without one: every key has a default"
        found.add(Kind.UNUSABLE, "", "", f"{source} cannot be read: {exc.strerror}", hint)
        return {}
    document = read_toml(data, found)
    return {} if document is None else check_tables(document, SCHEMA, found)


def _settle(
    values: Mapping[str, Any], environ: Mapping[str, str], base: Path, dev_dir: Path | None, found: Found
) -> Config:
    """Fill in the defaults, and make paths absolute, relative ones from `base`."""
    node, listen, fleet = values.get("node", {}), values.get("listen", {}), values.get("fleet", {})
    state, workers, log = values.get("state", {}), values.get("workers", {}), values.get("log", {})

    def placed(table: Mapping[str, str], key: str, default: Path) -> Path:
        named = table.get(key)
        if named is None or dev_dir is not None:
            return default
        return home(environ) / named[2:] if named.startswith("~/") else base / named

    if dev_dir is not None:
        listen, fleet = {"peer": ("127.0.0.1", 0)}, fleet | {"join": ()}
        dev_dir = dev_dir.absolute()
        state_dir, control = dev_dir, dev_dir / "control.sock"
    else:
        usual = xdg_folder(environ, "XDG_STATE_HOME", ".local/state") / "supd" / host_name()
        state_dir = placed(state, "dir", usual)
        control = placed(listen, "control", default_control_path(environ, os.getuid()))
    join, lease = fleet.get("join", ()), values.get("lease", {})
    min_free, devices = state.get("min_free", MIN_FREE), node.get("devices", "auto")
    return Config(
        found=found,
        node=node.get("name", host_name()),
        labels=node.get("labels", {}),
        devices=None if devices == "auto" else devices,
        max_jobs=node.get("max_jobs", 0),
        control=control,
        peer=peer_of(listen, fleet),
        peer_is_default="peer" not in listen and not join,
        advertise=listen.get("advertise", ""),
        interface=listen.get("interface", ""),
        runner_ports=listen.get("runners"),
        fleet=fleet.get("name", "default"),
        join=join,
        credential=placed(fleet, "credential", state_dir / "fleet.pem"),
        timing=timing_of(lease),
        on_isolation=lease.get("on_isolation", "fence"),
        state_dir=state_dir,
        logs_dir=placed(state, "logs_dir", state_dir / "logs"),
        max_disk_bytes=state.get("max_disk", MAX_DISK_BYTES),
        min_free_bytes=min_free[0],
        min_free_percent=min_free[1],
        keep_runs=state.get("keep_runs", KEEP_RUNS),
        keep_days=state.get("keep_days", KEEP_DAYS),
        ready_runners=workers.get("ready_runners", 1),
        orphan_wait_s=workers.get("orphan_wait", 3600.0),
        linger_s=workers.get("linger", 60.0),
        cgroup=workers.get("cgroup", "auto"),
        log_level=log.get("level", "info"),
        log_format=log.get("format", "auto"),
    )
