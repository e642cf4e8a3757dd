"""From a plan to the job that the fleet runs, and to the job file that says the same."""

import posixpath
import shlex
from collections.abc import Iterator, Mapping

import msgspec

from protocol.job import DevicesTable, JobSpec, RendezvousTable, RestartTable, RunTable, StopTable, TopologyTable
from protocol.job_text import job_text, written_keys
from protocol.text import one_line, sendable
from supervisor.suprun.line import NOT_UTF8, refused
from supervisor.suprun.plan import LAST_CALL_S, How, LaunchPlan, Mode
from supervisor.suprun.slurm import AGAIN_CODE
from supervisor.suprun.templates import literal
from supervisor.suprun.values import Mask

ORIGIN = "suprun"


def job_of(plan: LaunchPlan, folder: str = "") -> JobSpec:
    """The job of a plan. `folder` is that of the script, where the job's own folder is another one."""
    least, most = plan.nnodes
    spec = JobSpec(
        name=plan.name,
        run=RunTable(
            script=posixpath.join(folder, plan.program) if plan.how is How.SCRIPT else "",
            module=plan.program if plan.how is How.MODULE else "",
            command=(plan.program,) if plan.how is How.COMMAND else (),
            args=plan.args,
            python=posixpath.join(folder, plan.python) if "/" in plan.python else plan.python,
            workdir=literal(folder),
            env=plan.env,
        ),
        topology=TopologyTable(
            nnodes=plan.nnodes,
            nproc_per_node=plan.nproc_per_node,
            extra_nodes="grow" if least < most else "standby",
            role=plan.role,
        ),
        devices=DevicesTable(
            visibility="virtual" if plan.is_virtual else "all", numa_binding=plan.numa_binding or "none"
        ),
        rendezvous=RendezvousTable(
            join_timeout_s=plan.join_timeout_s,
            last_call_s=LAST_CALL_S if plan.last_call_s is None else plan.last_call_s,
        ),
        restart=RestartTable(
            max_restarts=plan.max_restarts,
            # torchrun knows no start that has failed: it restarts whatever it may.
            on_startup_failure="restart" if plan.max_restarts else "fail",
            never_on_exit=() if plan.step is None else (AGAIN_CODE,),
        ),
        stop=StopTable(grace_s=plan.grace_s),
    )
    keys = ("name", *written_keys(spec))
    return msgspec.structs.replace(spec, origins=dict.fromkeys(keys, ORIGIN))


def job_toml(plan: LaunchPlan, folder: str = "", comments: Mapping[str, str] | None = None) -> str:
    """The job file that says what a plan says; `folder` as for `job_of`.

    What a job file has no word for stands in comments at its end. Raises Refused for what is no UTF-8.
    """
    for word in (plan.program, *plan.args, plan.python, plan.role, folder, *plan.env.values()):
        if sendable(word) != word:
            message = f"{word!r} is not UTF-8, and a job file is"
            raise refused(NOT_UTF8, message, "use a name that is, or run the line with suprun as it is")
    notes = {"topology.nproc_per_node": "1 where there is no accelerator"} if plan.nproc_per_node == "auto" else {}
    head = "# A job for supd. Every key, with its default: supctl help job.toml\n\n"
    text = job_text(job_of(plan, folder), {**notes, **(comments or {})})
    unsaid = [f"# {one_line(line)}\n" for line in _unsaid(plan)]
    return head + text + "".join(["\n", *unsaid] if unsaid else [])


def _unsaid(plan: LaunchPlan) -> Iterator[str]:
    """What suprun would do and a job file does not say."""
    if plan.mode is not Mode.STANDALONE:
        yield "The nodes are those of supd's fleet, so the job needs no endpoint."
    if plan.log_dir is not None:
        yield f"--log-dir {shlex.quote(plan.log_dir)}: [state] logs_dir of supd.toml says where output goes."
    masks = {"--redirects": plan.redirects, "--tee": plan.tee}
    shown = [f"{option} {_mask_text(mask)}" for option, mask in masks.items() if not mask.is_empty]
    if plan.shown_ranks:
        shown.append(f"--local-ranks-filter {','.join(map(str, plan.shown_ranks))}")
    if shown:
        yield f"{', '.join(shown)}: all output is kept, and `supctl logs -f --ranks RANKS` shows what is wanted."
    if plan.stdout_filters or plan.stderr_filters:
        yield "--duplicate-stdout-filters, --duplicate-stderr-filters: `supctl logs --grep PATTERN` shows such lines."
    if plan.hides_slurm:
        yield "--hide-slurm: [run] inherit_env can name the variables that ranks get."


def _mask_text(mask: Mask) -> str:
    return ",".join(f"{rank}:{bits}" for rank, bits in mask.ranks.items()) or str(mask.everywhere)
