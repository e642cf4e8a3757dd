"""Soft limits that this node cannot give to ranks, since its hard ones are lower: told, never silently cut."""

import resource

from protocol.job import JobSpec, Submitter

CODE = "F207"


def limit_warnings(spec: JobSpec, submitter: Submitter) -> tuple[str, ...]:
    """One line for each. Ranks have supd's hard limits: those of whoever started it, not of whoever starts a job."""
    warnings = []
    for name, wanted in (submitter.limits | spec.run.limits).items():
        hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[1]
        is_cut = hard != resource.RLIM_INFINITY and (wanted == resource.RLIM_INFINITY or wanted > hard)
        if is_cut:
            asked = "unlimited" if wanted == resource.RLIM_INFINITY else str(wanted)
            is_jobs = name in spec.run.limits
            what = f"run.limits.{name} = {asked}" if is_jobs else f"the submitter's limit {name}, {asked},"
            warnings.append(
                f"warning[{CODE}]: {what} is above this node's hard limit: ranks get {hard}; "
                f"start supd with a higher one (ulimit -H, Limit{name.upper()}= in its unit)"
            )
    return tuple(warnings)
