"""Another revision of the job of a run that goes on: read and checked as at a start, then on disk, then told."""

from collections.abc import Mapping

from msgspec.structs import replace

from protocol import coordinator_events as c
from protocol.errors import Refused
from protocol.job import Job
from protocol.messages.control import Done, Start
from supervisor.daemon import submission
from supervisor.daemon.jobs import Jobs
from supervisor.daemon.journal import Journal
from supervisor.daemon.run import Run, check_size
from supervisor.daemon.starting import Starting


class Reloading:
    """Takes in revisions, of a run one at a time. A client on this `node` has the job looked at here."""

    def __init__(
        self,
        jobs: Jobs,
        starting: Starting,
        journal: Journal,
        look_at_ports: submission.Look,
        node: str,
        labels: Mapping[str, str],
    ) -> None:
        self._jobs = jobs
        self._starting = starting
        self._journal = journal
        self._look_at_ports = look_at_ports
        self._node = node
        self._labels = labels
        self._under_way: set[str] = set()  # runs

    async def reload(self, run: Run, request: Start, user: str, reason: str, *, is_local: bool) -> Done:
        """Have a run go on as the job says that is handed in; when this returns it survives power loss. Of a run that
        cannot be restarted nothing changes.

        Raises SupdError and OSError.
        """
        name = run.job.run
        if name in self._under_way:
            raise Refused("F121", f"{name} is being given another job just now", hint=f"supctl status {name}")
        self._under_way.add(name)
        try:
            return await self._reload(run, request, user, reason, is_local=is_local)
        finally:
            self._under_way.discard(name)

    async def _reload(self, run: Run, request: Start, user: str, reason: str, *, is_local: bool) -> Done:
        submitted = await submission.read(request, user)
        if submitted.spec.name != run.name:
            what = f"{request.source} is of the job {submitted.spec.name}, and {run.job.run} is a run of {run.name}"
            hint = f'write `name = "{run.name}"` in it, or start it as a job of its own: supctl start'
            raise Refused("F121", what, hint=hint)
        warnings: tuple[str, ...] = ()
        if is_local:
            found = await submission.look(submitted, self._node, self._labels, self._look_at_ports)
            if found.problems:
                raise submitted.file.invalid(found.problems)
            warnings = found.warnings
        self._starting.see_that_it_fits(submitted.spec)
        before, began = run.job, run.job.submitter
        submitter = replace(submitted.submitter, user=began.user, allow_mixed=began.allow_mixed)
        job = Job(run=before.run, spec=submitted.spec, submitter=submitter, revision=before.revision + 1)
        check_size(job)
        await self._journal.save_job(job)
        was_ahead, run.is_job_ahead = run.is_job_ahead, False
        run.job = job
        await self._jobs.ask(run, c.Reloaded(job.spec, job.revision, user, reason))
        if run.machine.revision < job.revision:  # stopped or taken over: it must not come with a later start
            await self._journal.save_job(before)
            run.job, run.is_job_ahead = before, was_ahead
        return Done(
            run=job.run,
            notes=submission.notes(submitted),
            file_warnings=tuple(map(str, submitted.file.warnings)),
            warnings=warnings,
        )
