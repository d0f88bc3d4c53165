"""What each request is answered with: the questions here, the verbs by `Verbs`, the streams by followers."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import anyio

from llmgwd.control.preview import engine_view
from llmgwd.control.show import canary_view, job_view, model_view
from llmgwd.control.verbs import Verbs
from llmgwd.domain.catalog import Model
from llmgwd.domain.errors import unknown
from llmgwd.jobs import clean_up
from llmgwd.jobs.services import Services
from llmgwd.jobs.verify import verify
from llmgwd.protocol import messages as m
from llmgwd.protocol.views import CanaryView, StatusView, UpdateView
from llmgwd.updates import check_all

Reply = (
    m.Status
    | m.Models
    | m.Canaries
    | m.Jobs
    | m.Events
    | m.Updates
    | m.Weights
    | m.Pruned
    | m.Logs
    | m.Engines
    | m.Previewed
    | m.Started
    | m.Done
    | m.Verified
)
Update = m.JobChanged | m.CanaryChanged | m.UpdateChecked | m.VerifyProgress


AGAIN_AFTER_S = 5.0
"""A follower is told the same once more after this long: only so one that has left is noticed."""


async def _wait(changed: anyio.Event) -> None:
    with anyio.move_on_after(AGAIN_AFTER_S):
        await changed.wait()


@dataclass
class Answers:
    """Answers every request; raises LlmgwError for what is refused."""

    services: Services
    verbs: Verbs
    version: str
    pid: int
    started: datetime

    async def answer(self, request: m.Request, by: str) -> Reply:
        """The final reply to a request that is not followed."""
        verbs = self.verbs
        acting: dict[type, Callable[[Any, str], Awaitable[Reply]]] = {
            m.AddModel: verbs.add,
            m.RemoveModel: verbs.remove,
            m.StartCanary: verbs.canary,
            m.SetPercent: verbs.percent,
            m.PausePlan: verbs.pause,
            m.ResumePlan: verbs.resume,
            m.SetLimits: verbs.limits,
            m.Promote: verbs.promote,
            m.Abort: verbs.abort,
            m.Update: verbs.update,
            m.Rollback: verbs.rollback,
            m.CancelJob: verbs.cancel,
            m.Preview: verbs.preview,
        }
        if act := acting.get(type(request)):
            return await act(request, by)
        if isinstance(request, m.ListUpdates):
            return m.Updates(await check_all(self.services, self._asked(request.name)))
        if isinstance(request, m.ListWeights):
            return await clean_up.on_disk(self.services)
        if isinstance(request, m.PruneWeights):
            return await clean_up.prune(self.services, dry_run=request.dry_run)
        return self._look_up(request)

    def _look_up(self, request: m.Request) -> Reply:
        services, store = self.services, self.services.store
        match request:
            case m.GetStatus():
                return m.Status(self.status())
            case m.ListModels():
                models = [model for model in store.models.all() if model.canary_of is None]
                return m.Models([model_view(services, model) for model in models])
            case m.ShowModel(name):
                return m.Models([model_view(services, store.models.get(name))])
            case m.ListCanaries(name, ended):
                return m.Canaries(self._canaries(name, ended))
            case m.ListJobs(limit):
                return m.Jobs([job_view(self.verbs.runner.view_job(job.id)) for job in store.jobs.recent(limit)])
            case m.ShowJob(job):
                return m.Jobs([job_view(self.verbs.runner.view_job(job))])
            case m.ListEvents(limit, of):
                return m.Events(store.events.recent(limit, of))
            case m.ListEngines():
                return m.Engines([engine_view(services, name) for name in sorted(services.engines)])
            case m.ShowEngine(name, of):
                return m.Engines([engine_view(services, name, store.models.get(of) if of else None)])
            case m.FindLogs(name):
                model = store.models.get(name)
                owners = (model.name, *(row.name for row in store.models.all() if row.canary_of == model.name))
                return m.Logs(
                    [str(each.log) for owner in owners for each in services.fleet.of(owner) if not each.is_external]
                )
        raise AssertionError(f"{type(request).__name__} is not answered")

    def follow(
        self, request: m.WatchJob | m.WatchCanary | m.ListUpdates | m.VerifyWeights
    ) -> AsyncGenerator[Update | Reply]:
        """Its updates, then the final reply."""
        if isinstance(request, m.ListUpdates):
            return self._follow_updates(request.name)
        if isinstance(request, m.VerifyWeights):
            return verify(self.services, request.of, repair=request.repair)
        return self._follow_job(request.id) if isinstance(request, m.WatchJob) else self._follow_canary(request.id)

    async def _follow_updates(self, name: str | None) -> AsyncGenerator[Update | Reply]:
        asked = self._asked(name)
        send, receive = anyio.create_memory_object_stream[UpdateView](len(asked))
        async with anyio.create_task_group() as tasks, receive:
            tasks.start_soon(check_all, self.services, asked, send)
            views: dict[str, UpdateView] = {}
            async for view in receive:
                views[view.model] = view
                yield m.UpdateChecked(view)
        yield m.Updates([views[model.name] for model in asked])

    async def _follow_job(self, job_id: str) -> AsyncGenerator[Update | Reply]:
        self.verbs.runner.view_job(job_id)  # Raises when there is none: nobody waits for it to change.
        while True:
            changed = self.services.feed.next_change(job_id)
            job = self.verbs.runner.view_job(job_id)
            if job.over:
                yield m.Jobs([job_view(job)])
                return
            yield m.JobChanged(job_view(job))
            await _wait(changed)

    async def _follow_canary(self, canary_id: str) -> AsyncGenerator[Update | Reply]:
        if self.services.store.canaries.find(canary_id) is None:
            raise unknown("no_such_canary", f"there is no canary {canary_id}")
        while True:
            changed = self.services.feed.next_change(canary_id)
            canary = self.services.store.canaries.find(canary_id)
            assert canary is not None
            if not canary.runs:
                yield m.Canaries([canary_view(self.services, canary)])
                return
            yield m.CanaryChanged(canary_view(self.services, canary))
            await _wait(changed)

    def _asked(self, name: str | None) -> list[Model]:
        models = self.services.store.models
        return [models.get(name)] if name is not None else [each for each in models.all() if each.canary_of is None]

    def _canaries(self, name: str | None, ended: bool) -> list[CanaryView]:
        store = self.services.store
        if name is not None:
            store.models.get(name)
        found = store.canaries.all(name) if ended else store.canaries.running()
        return [canary_view(self.services, canary) for canary in found if name is None or canary.model == name]

    def status(self) -> StatusView:
        services, store = self.services, self.services.store
        return StatusView(
            version=self.version,
            pid=self.pid,
            started=self.started,
            gateway=f"http://{services.settings.gateway.listen}",
            admin=f"http://{services.settings.admin.listen}",
            workers=len(services.dataplane.link.workers),
            state_folder=str(services.state_folder),
            models=tuple(model_view(services, model) for model in store.models.all() if model.canary_of is None),
            canaries=tuple(canary_view(services, canary) for canary in store.canaries.running()),
            jobs=tuple(job_view(self.verbs.runner.view_job(job.id)) for job in store.jobs.unfinished()),
        )
