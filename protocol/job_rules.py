"""Rules over several keys of a job.toml: what contradicts (an error), and what may not be meant (a warning)."""

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from protocol.errors import About, KeyPath, Problem
from protocol.job import JobSpec
from protocol.selector import NoSuchRank, choose_ranks
from protocol.tables import Found, Kind, did_you_mean, key_text, quoted

PROGRAMS = ("script", "module", "command")
PATTERN_GROUPS = ("step", "total", "loss")
"""What `progress.log_pattern` can find in a line; `checkpoint.log_pattern` finds the step."""

INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""By which interface ranks talk: variables of torch's gloo and tensorpipe, and of NCCL (which takes `=NAME`, too)."""
LOOPBACK = "lo"


def check_rules(document: Mapping[str, Any], values: Mapping[str, Any], found: Found) -> None:
    """Find what contradicts. `document` is as written, `values` are the sound ones of it by field."""
    if isinstance(document.get("run", {}), dict):
        _check_program(document.get("run", {}), found)
    _check_exit_codes(values["restart"], found)
    _check_source(values["progress"], found)
    _check_nodes(values["topology"], found)


def _check_program(run: Mapping[str, object], found: Found) -> None:
    given = [name for name in run if name in PROGRAMS]
    names = " and ".join(f"`run.{name}`" for name in PROGRAMS if name in given)
    if not given:
        message = "[run] needs one of `script`, `module` and `command`"
        about = About(("run",))
        found.add(Kind.EXCLUSIVE, "run", "", message, 'write [run] and below it script = "train.py"', about=about)
    elif len(given) > 1:
        first, second, *_ = (About(("run", name), is_key=True) for name in given)
        other = (first, "first given here")
        found.add(Kind.EXCLUSIVE, "run", "", f"{names} exclude each other", _keep_one(given), about=second, other=other)


def _keep_one(given: list[str]) -> str:
    python = [f"`{name}`" for name in PROGRAMS[:2] if name in given]
    under = f"{' and '.join(python)} run{'s' if len(python) == 1 else ''} under python"
    return f"keep one: {under}, `command` is used as is" if "command" in given else f"keep one: {under}"


def _check_exit_codes(restart: Mapping[str, Any], found: Found) -> None:
    never, always = restart.get("never_on_exit", ()), restart.get("always_on_exit", ())
    for code in sorted({*never} & {*always}):
        message = "a code is in `restart.never_on_exit` and in `restart.always_on_exit`"
        found.add(
            Kind.CONTRADICTION,
            "restart.always_on_exit",
            str(code),
            message,
            "keep it in one of them",
            about=About(("restart", "always_on_exit", always.index(code))),
            other=(About(("restart", "never_on_exit", never.index(code))), "also here"),
        )


def _check_source(progress: Mapping[str, object], found: Found) -> None:
    source = progress.get("source")
    wanted = {"log": ("log_pattern", r"'step (?P<step>\d+)'"), "file": ("file", '"out/progress.json"')}.get(str(source))
    if wanted and not progress.get(wanted[0]):
        key, example = wanted
        found.add(
            Kind.CONTRADICTION,
            "progress.source",
            f'"{source}"',
            f'`progress.source` is "{source}", and `progress.{key}` is not given',
            f'write {key} = {example}, or source = "auto"',
            about=About(("progress", "source")),
        )


def _check_nodes(topology: Mapping[str, Any], found: Found) -> None:
    """A job whose nodes are all named has enough of them."""
    nodes, (least, _) = topology.get("nodes", ()), topology.get("nnodes", (1, 1))
    if not nodes or not all(is_name(node) for node in nodes):
        return
    left = {node for node in nodes if not _excluding(node, topology.get("exclude", ()))}
    if len(left) >= least:
        return
    count = f"{len(left)} node{'s' * (len(left) != 1)}"
    behind = "" if len(left) == len(set(nodes)) else ", without those of `topology.exclude`"
    found.add(
        Kind.CONTRADICTION,
        "topology.nodes",
        "",
        f"`topology.nodes` names {count}{behind}, and `topology.nnodes` wants {least}",
        'name more, or write a pattern, as in "gpu-*"',
        about=About(("topology", "nodes")),
        other=(About(("topology", "nnodes")), "the number of nodes") if "nnodes" in topology else None,
    )


def is_name(glob: str) -> bool:
    """Whether this pattern is the name of one node."""
    return not set(glob) & set("*?[")


def _excluding(node: str, globs: Iterable[str]) -> str | None:
    """The first of the patterns that leaves out the node of this name."""
    return next((glob for glob in globs if fnmatch.fnmatchcase(node, glob)), None)


# --- warnings ----------------------------------------------------------------------------------------------------


def warnings_of(spec: JobSpec) -> Iterator[Problem]:
    """What of a sound job may not be meant, in no order."""
    yield from _blind(spec)
    yield from _unsaved(spec)
    yield from _without_effect(spec)
    yield from _out_of_order(spec)
    yield from _of_nodes(spec)
    yield from _loopback(spec)
    yield from _of_growing(spec)
    yield from _of_preemption(spec)


def _blind(spec: JobSpec) -> Iterator[Problem]:
    """What a job says of hangs where it wants its ranks not to be watched."""
    if spec.progress.source != "none":
        return
    without_effect = {
        "action": spec.hang.action in ("restart", "fail"),
        "init_timeout": spec.is_written("hang.init_timeout") and spec.hang.init_timeout_s is not None,
        "step_timeout": spec.is_written("hang.step_timeout") and spec.hang.step_timeout_s is not None,
        "phases": any(
            limit_s is not None and spec.is_written(f"hang.phases.{key_text(phase)}")
            for phase, limit_s in spec.hang.phases.items()
        ),
    }
    for key in (key for key, is_meant in without_effect.items() if is_meant):
        message = f'`progress.source` is "none", so supd watches no rank for hangs, and `hang.{key}` has no effect'
        other = (About(("progress", "source")), "nothing is watched")
        yield _warning(Kind.BLIND, ("hang", key), message, 'write source = "auto", or leave it out', other)


def _unsaved(spec: JobSpec) -> Iterator[Problem]:
    """Restarts that supd cannot tell to be worth it."""
    wants_restarts = spec.is_written("restart.max_restarts") and spec.restart.max_restarts > 0
    if wants_restarts and spec.restart.policy != "never" and not spec.checkpoint.is_watched:
        message = "restarts are wanted, and [checkpoint] does not say how a save is seen"
        hint = 'a restart begins at the last checkpoint: write [checkpoint] and below it marker = "out/latest.txt"'
        yield _warning(Kind.UNSAVED, ("restart", "max_restarts"), message, hint)


def _without_effect(spec: JobSpec) -> Iterator[Problem]:
    """Keys that do nothing without another, or beside it."""
    if spec.run.python and spec.run.command:
        message = "`run.python` has no effect on `run.command`, which is used as it is"
        yield _warning(Kind.NO_EFFECT, ("run", "python"), message, "leave it out, or write script or module")
    if spec.stop.pre_wait_s > 0 and not spec.stop.pre_signal:
        message = "`stop.pre_wait` has no effect without `stop.pre_signal`"
        yield _warning(Kind.NO_EFFECT, ("stop", "pre_wait"), message, 'write pre_signal = "SIGUSR1", or leave it out')
    if spec.stop.pre_signal and not spec.stop.pre_wait_s:
        message = "`stop.pre_signal` has no effect without `stop.pre_wait`: `stop.signal` follows at once"
        yield _warning(Kind.NO_EFFECT, ("stop", "pre_signal"), message, 'write pre_wait = "1m", or leave it out')
    yield from _without_restarts(spec)
    yield from _without_budget(spec)
    yield from _of_other_sources(spec)
    yield from _of_log_lines(spec)


def _without_restarts(spec: JobSpec) -> Iterator[Problem]:
    restart = spec.restart
    if restart.policy != "never":
        return
    without_effect = {
        "max_restarts": spec.is_written("restart.max_restarts") and restart.max_restarts != 0,
        "max_infra_restarts": spec.is_written("restart.max_infra_restarts") and restart.max_infra_restarts != 0,
        "restart_window": restart.restart_window_s > 0,
        "no_progress_limit": spec.is_written("restart.no_progress_limit") and restart.no_progress_limit != 0,
        "on_budget_spent": restart.on_budget_spent == "hold",
        "on_startup_failure": restart.on_startup_failure == "restart",
        "always_on_exit": bool(restart.always_on_exit),
    }
    for key in (key for key, is_meant in without_effect.items() if is_meant):
        message = f'`restart.{key}` has no effect where `restart.policy` is "never"'
        other = (About(("restart", "policy")), "no restart at all")
        yield _warning(Kind.NO_EFFECT, ("restart", key), message, "leave one of them out", other)


def _without_budget(spec: JobSpec) -> Iterator[Problem]:
    """What belongs to budgets that are never spent."""
    restart = spec.restart
    if restart.policy == "never" or restart.max_restarts >= 0:
        return
    without_effect = {
        "restart_window": restart.restart_window_s > 0 and restart.max_infra_restarts < 0,
        "count_membership": restart.count_membership,
    }
    for key in (key for key, is_meant in without_effect.items() if is_meant):
        message = f"`restart.{key}` has no effect where `restart.max_restarts` is -1, which is no limit"
        other = (About(("restart", "max_restarts")), "no limit")
        yield _warning(Kind.NO_EFFECT, ("restart", key), message, "leave it out, or write a limit", other)


def _of_other_sources(spec: JobSpec) -> Iterator[Problem]:
    """What belongs to a source of progress that is not looked at."""
    progress = spec.progress
    if progress.source == "auto":
        return
    is_none = progress.source == "none"
    without_effect = {
        "log_pattern": bool(progress.log_pattern) and progress.source != "log",
        "file": bool(progress.file) and progress.source != "file",
        "log_ranks": spec.is_written("progress.log_ranks") and is_none and not _looks_at_lines(spec),
        "total_steps": progress.total_steps > 0 and is_none,
    }
    for key in (key for key, is_meant in without_effect.items() if is_meant):
        message = f'`progress.{key}` has no effect where `progress.source` is "{progress.source}"'
        other = (About(("progress", "source")), "nothing is looked at" if is_none else "only this is looked at")
        yield _warning(Kind.NO_EFFECT, ("progress", key), message, "leave one of them out", other)


def _of_log_lines(spec: JobSpec) -> Iterator[Problem]:
    """What of the search in the ranks' output finds nothing."""
    progress, nproc = spec.progress, spec.topology.nproc_per_node
    yield from _unread_groups("checkpoint", spec.checkpoint.log_pattern, ("step",))
    if progress.source not in ("auto", "log") and not spec.checkpoint.log_pattern:
        return
    if not _looks_at_lines(spec):
        if spec.is_written("progress.log_ranks"):
            message = "`progress.log_ranks` has no effect without `progress.log_pattern`"
            hint = r"write log_pattern = 'step (?P<step>\d+)', or leave it out"
            yield _warning(Kind.NO_EFFECT, ("progress", "log_ranks"), message, hint)
        return
    if progress.source in ("auto", "log"):
        yield from _unread_groups("progress", progress.log_pattern, PATTERN_GROUPS)
    if isinstance(nproc, int):
        ranks = nproc * spec.topology.nnodes_wanted
        try:
            choose_ranks(progress.log_ranks, ranks)
        except NoSuchRank as exc:
            message = f"`progress.log_ranks` names {exc}, and there is no such rank"
            hint = f"ranks are 0 to {ranks - 1}" if ranks > 1 else "there is rank 0 only"
            other = (About(("topology", "nproc_per_node")), "ranks of the job")
            yield _warning(Kind.BLIND, ("progress", "log_ranks"), message, hint, other)


def _looks_at_lines(spec: JobSpec) -> bool:
    return bool(spec.progress.log_pattern or spec.checkpoint.log_pattern)


def _unread_groups(table: str, pattern: str, groups: Sequence[str]) -> Iterator[Problem]:
    for name in re.compile(pattern).groupindex:
        is_used = any(f"{before}{name})" in pattern for before in ("(?P=", "(?("))
        if name not in groups and not is_used:
            message = f"`{table}.log_pattern` has a group `{name}`, which nothing reads"
            hint = did_you_mean(name, groups) or f"those that are read: {', '.join(groups)}"
            yield _warning(Kind.NO_EFFECT, (table, "log_pattern"), message, hint)


def _of_nodes(spec: JobSpec) -> Iterator[Problem]:
    """What of the choice of nodes does nothing."""
    topology = spec.topology
    least, most = topology.nnodes
    for key in ("topology.extra_nodes", "rendezvous.last_call"):
        if least == most and spec.is_written(key):
            message = f"`{key}` has no effect where `topology.nnodes` is one number, {least}"
            hint = f'write a range, as in nnodes = "{least}:{least + 1}", or leave it out'
            yield _warning(Kind.NO_EFFECT, tuple(key.split(".")), message, hint, _other_nnodes(spec))
    for i, node in enumerate(topology.nodes):
        glob = _excluding(node, topology.exclude) if is_name(node) else None
        if glob is not None:
            message = f"`topology.nodes` names {quoted(node)}, which `topology.exclude` leaves out"
            other = (About(("topology", "exclude", topology.exclude.index(glob))), "left out here")
            yield _warning(Kind.NO_EFFECT, ("topology", "nodes", i), message, "take it out of one of them", other)


def _other_nnodes(spec: JobSpec) -> tuple[About, str] | None:
    return (About(("topology", "nnodes")), "nodes of the job") if spec.is_written("topology.nnodes") else None


def _of_growing(spec: JobSpec) -> Iterator[Problem]:
    """What is said of enlarging the world where it is not enlarged, or not so."""
    topology = spec.topology
    for key in ("grow_min_interval", "grow_without_checkpoint"):
        is_meant = spec.is_written(f"topology.{key}")
        if is_meant and topology.extra_nodes != "grow":
            message = f'`topology.{key}` has no effect where `topology.extra_nodes` is "standby"'
            is_given = spec.is_written("topology.extra_nodes")
            other = (About(("topology", "extra_nodes")), "further nodes are spares") if is_given else None
            yield _warning(
                Kind.NO_EFFECT, ("topology", key), message, 'write extra_nodes = "grow", or leave it out', other
            )
    if topology.grow_without_checkpoint and topology.extra_nodes == "grow" and spec.checkpoint.is_watched:
        message = "`topology.grow_without_checkpoint` has no effect where there is a [checkpoint]"
        hint = "leave it out: the world is enlarged at the next checkpoint"
        other = (About(("checkpoint",)), "saves are seen")
        yield _warning(Kind.NO_EFFECT, ("topology", "grow_without_checkpoint"), message, hint, other)


def _of_preemption(spec: JobSpec) -> Iterator[Problem]:
    """What is said of preemptions that are not noticed, or not so, and a notice that is too short."""
    table = spec.preemption
    is_noticed = bool(table.signals or table.notice_command)
    written = [key for key in ("lead_time", "then", "exit_code") if spec.is_written(f"preemption.{key}")]
    for key in () if is_noticed else written:
        message = f"`preemption.{key}` has no effect without `preemption.signals` or `preemption.notice_command`"
        hint = 'write signals = ["SIGUSR1"], or whatever your scheduler sends'
        yield _warning(Kind.NO_EFFECT, ("preemption", key), message, hint)
    if spec.is_written("preemption.notice_interval") and not table.notice_command:
        message = "`preemption.notice_interval` has no effect without `preemption.notice_command`"
        hint = 'write notice_command = ["…"], or leave it out'
        yield _warning(Kind.NO_EFFECT, ("preemption", "notice_interval"), message, hint)
    if is_noticed and "exit_code" in written and table.then != "exit":
        message = f'`preemption.exit_code` has no effect where `preemption.then` is "{table.then}"'
        other = (About(("preemption", "then")), "the run goes on")
        yield _warning(Kind.NO_EFFECT, ("preemption", "exit_code"), message, "leave one of them out", other)
    if is_noticed and 0 < table.lead_time_s < spec.stop.grace_s:
        lead, grace = f"{table.lead_time_s:g}s", f"{spec.stop.grace_s:g}s"
        message = f"`preemption.lead_time` ({lead}) is over before `stop.grace` ({grace}): the node is gone by then"
        limit = (About(("stop", "grace")), "the longest end of a rank") if spec.is_written("stop.grace") else None
        hint = f'write [stop] grace = "{lead}" or less'
        yield _warning(Kind.OUT_OF_ORDER, ("preemption", "lead_time"), message, hint, limit)


def _loopback(spec: JobSpec) -> Iterator[Problem]:
    """Ranks on several nodes that are told to talk by an interface which ends in their own."""
    if spec.topology.nnodes[1] == 1:
        return
    for name in INTERFACE_VARIABLES:
        if spec.run.env.get(name, "").lstrip("=") == LOOPBACK:
            message = f'`run.env.{name}` is "{LOOPBACK}", by which no rank of another machine is reached'
            hint = "name the interface of the network between the nodes, or leave it out"
            yield _warning(Kind.LOOPBACK, ("run", "env", name), message, hint, _other_nnodes(spec))


def _out_of_order(spec: JobSpec) -> Iterator[Problem]:
    """Limits that pass before others that they build on."""
    init_s, start_s = spec.hang.init_timeout_s, spec.restart.start_after_s
    if init_s is not None and init_s < start_s:
        message = "`hang.init_timeout` passes before `restart.start_after`, when a rank counts as started"
        key = ("hang", "init_timeout") if spec.is_written("hang.init_timeout") else ("restart", "start_after")
        rest = ("restart", "start_after") if key[0] == "hang" else ("hang", "init_timeout")
        hint = f'write init_timeout = "{start_s:g}s" or more' if key[0] == "hang" else f'write "{init_s:g}s" or less'
        yield _warning(Kind.OUT_OF_ORDER, key, message, hint, (About(rest), "the other limit"))
    if spec.restart.backoff_s > spec.restart.backoff_max_s:
        low, high = f"{spec.restart.backoff_s:g}s", f"{spec.restart.backoff_max_s:g}s"
        message = f"`restart.backoff` ({low}) is above `restart.backoff_max` ({high}), so no wait is longer than that"
        key = ("restart", "backoff_max") if spec.is_written("restart.backoff_max") else ("restart", "backoff")
        rest = ("restart", "backoff" if key[1] == "backoff_max" else "backoff_max")
        hint = f'write backoff_max = "{low}" or more'
        yield _warning(Kind.OUT_OF_ORDER, key, message, hint, (About(rest), "the first wait"))


def _warning(kind: Kind, path: KeyPath, message: str, hint: str, other: tuple[About, str] | None = None) -> Problem:
    key = ".".join(str(part) for part in path if isinstance(part, str))
    return Problem(f"J{kind:03}", key, "", message, hint, about=About(path), other=other, is_warning=True)
