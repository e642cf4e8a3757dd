"""From a plan to the job as this machine hands it in."""

import getpass
import os
import resource
import signal

from msgspec.structs import replace

from protocol.dataclass import dataclass
from protocol.job import LIMITS, MAX_FILE_BYTES_MAX, JobSpec, Submitter
from supervisor.shell.pythons import find_python
from supervisor.suprun.job import job_of
from supervisor.suprun.plan import LaunchPlan, Mode

RANK_LABEL = "suprun-node-rank"
"""A node's label with its place, where it has one."""

SMALL_FILE_BYTES, SMALL_FILES = 64_000_000, 3
"""Of a rank's output where nobody has asked for files: as much as a console that is read slowly may be behind."""


@dataclass(frozen=True)
class Place:
    """What this process was called with, before it changes any of it."""

    folder: str
    limits: dict[str, int]
    umask: int
    parent: int

    @classmethod
    def here(cls) -> "Place":
        """As of now."""
        umask = os.umask(0o077)
        os.umask(umask)
        limits = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[0] for name in LIMITS}
        return cls(os.getcwd(), limits, umask, os.getppid())


def spec_of(plan: LaunchPlan, nproc: int) -> JobSpec:
    """The job, with what torchrun does and a job file leaves to its defaults."""
    spec = job_of(plan)
    has_places = plan.node_rank is not None or plan.step is not None
    return replace(
        spec,
        run=replace(spec.run, inherit_env="daemon"),  # each node's ranks have the environment of its own suprun
        topology=replace(
            spec.topology,
            nproc_per_node=nproc,
            rank_order=f"label:{RANK_LABEL}" if has_places else "name",
            grow_min_interval_s=0.0,
            grow_without_checkpoint=True,
        ),
        restart=replace(spec.restart, no_progress_limit=0, exclude_node_after=0, on_startup_failure="restart"),
        logs=replace(spec.logs, max_file_bytes=SMALL_FILE_BYTES, keep_files=SMALL_FILES)
        if plan.log_dir is None
        else replace(spec.logs, max_file_bytes=MAX_FILE_BYTES_MAX),
    )


def submitter_of(plan: LaunchPlan, place: Place) -> Submitter:
    """Who starts it, and where."""
    names = ",".join(name for name in plan.signals if name in signal.Signals.__members__)
    own_id = os.urandom(16).hex() if plan.mode is Mode.STANDALONE else "none"  # as torchrun has it
    return Submitter(
        folder=place.folder,
        source="suprun",
        python=plan.python or find_python(os.environ),
        env={},
        limits=place.limits,
        umask=place.umask,
        user=_user(),
        contract={"TORCHELASTIC_RUN_ID": plan.run_id or own_id, "TORCHELASTIC_SIGNALS_TO_HANDLE": names},
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # usual in containers
        return str(os.getuid())
