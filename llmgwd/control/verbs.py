"""The verbs: each checks what the present state allows (K2), then changes it or starts the job that does."""

from dataclasses import dataclass

import msgspec

from llmgwd.control.preview import preview
from llmgwd.control.show import canary_view, job_view
from llmgwd.domain.canary import Canary, CanaryEvent, after, already_promoted, check_share, no_canary
from llmgwd.domain.catalog import Model, moved_back
from llmgwd.domain.errors import LlmgwError, refused, unusable
from llmgwd.domain.jobs import Job
from llmgwd.domain.names import asked_for, check_new_name, fallbacks_of, names
from llmgwd.domain.plan import Plan, Progress, check_plan, given_by_hand, resumed
from llmgwd.jobs.canary import plan_of
from llmgwd.jobs.choices import check_choice, check_engine, check_source
from llmgwd.jobs.promote import check_ready
from llmgwd.jobs.run import Cancellation
from llmgwd.jobs.runner import Runner, busy
from llmgwd.jobs.services import Services
from llmgwd.jobs.share import give_share
from llmgwd.jobs.take_out import take_out
from llmgwd.protocol import messages as m
from llmgwd.protocol.states import CanaryPhase, EventKind, JobKind, JobState, OnDeadline
from llmgwd.verdict.limits import LimitError, complete, written


@dataclass
class Verbs:
    """One method a verb; `by` is who asks."""

    services: Services
    runner: Runner

    async def preview(self, request: m.Preview, by: str) -> m.Previewed:
        """What a verb would do: refused as it would be, and then nothing is written."""
        asked = request.request
        if isinstance(asked, m.AddModel):
            self._check_add(asked)
        else:
            self._check_canary(asked)
        if job := self.services.store.jobs.of(asked.name):
            raise busy(job)
        return m.Previewed(await preview(self.services, asked, by))

    async def add(self, request: m.AddModel, by: str) -> m.Started:
        self._check_add(request)
        return self._start(JobKind.ADD, request.name, by, request)

    def _check_add(self, request: m.AddModel) -> None:
        check_choice(request.weights)
        engine = check_engine(request, None, self.services.engines)
        if request.replicas < 1:
            raise unusable("bad_replicas", f"{request.replicas} replicas are not possible: give 1 or more")
        check_gpus(request.gpus)
        if engine.is_external and request.replicas != 1:
            raise unusable("bad_replicas", "each --url is one replica: repeat --url in place of --replicas")
        if not (request.weights.repo or request.weights.path or request.weights.urls):
            raise unusable(
                "no_weights", f"where do {request.name}'s weights come from? give --repo ORG/REPO or --path FILE"
            )
        adapters = tuple(adapter.name for adapter in request.adapters)
        check_new_name(request.name, request.aliases, adapters, self._taken())
        fallbacks_of(request.name, request.aliases, request.fallbacks, self.services.store.models.all())

    async def remove(self, request: m.RemoveModel, by: str) -> m.Started:
        model = self._changeable(request.name)
        self._check_no_canary(model, "removed")
        return self._start(JobKind.REMOVE, model.name, by, request)

    async def canary(self, request: m.StartCanary, by: str) -> m.Started:
        self._check_canary(request)
        return self._start(JobKind.CANARY, request.name, by, request)

    def _check_canary(self, request: m.StartCanary) -> None:
        check_share(request.percent)
        check_choice(request.weights)
        plan = plan_of(request)
        check_plan(plan, of_steps=bool(request.steps))
        limits = {**self.services.settings.canary.limits, **check_limits(request.limits)}
        _check_can_be_judged(limits, plan, is_awaited=request.until_verdict)
        check_gpus(request.gpus)
        model = self._changeable(request.name)
        self._check_no_canary(model)
        check_engine(request, model, self.services.engines)
        check_source(request, model)

    async def percent(self, request: m.SetPercent, by: str) -> m.Done:
        """A person's share holds a plan that would have given another, or promoted."""
        check_share(request.percent)
        services = self.services
        model = self._changeable(request.name)
        canary = services.store.canaries.of(model.name)
        progress, held = None, ""
        if canary is not None:
            judged = services.dataplane.bench.judged(canary.id)
            progress = given_by_hand(canary.plan, canary.progress, request.percent, services.now(), judged)
            if progress is not None and progress.paused_at is not None:
                held = f"; its plan is held, go on with `llmgw ctl model resume {model.name}`"
        changed = await give_share(services, model.name, request.percent, by=by, progress=progress)
        when = "" if changed.phase is CanaryPhase.SERVING else " once it is ready"
        return m.Done(
            f"{changed.name} gets {changed.share:g} % of {model.name}'s requests{when}{held}",
            canary_view(services, changed),
        )

    async def pause(self, request: m.PausePlan, by: str) -> m.Done:
        now = self.services.now()
        canary = self._changeable_canary(request.name, "pause")
        if canary.progress is not None and canary.progress.paused_at is not None:
            return m.Done(f"{canary.name}'s plan is paused already", canary_view(self.services, canary))
        if not canary.plan.acts:
            raise _no_plan(canary, "pause", f"let it wait without requests: `llmgw ctl model percent {canary.model} 0`")
        paused = msgspec.structs.replace(canary.progress or Progress(since=now), paused_at=now)
        changed = self._change_progress(canary, paused, by, EventKind.CANARY_PAUSED)
        return m.Done(f"{canary.name}'s plan is paused; it is judged on", canary_view(self.services, changed))

    async def resume(self, request: m.ResumePlan, by: str) -> m.Done:
        now = self.services.now()
        canary = self._changeable_canary(request.name, "resume")
        progress = canary.progress and resumed(canary.plan, canary.progress, now)
        if progress is None or progress == canary.progress:
            if not canary.plan.acts:
                hint = f"give it another share with `llmgw ctl model percent {canary.model} N`"
                raise _no_plan(canary, "resume", f"{hint}, or move to it with `llmgw ctl model promote {canary.model}`")
            return m.Done(f"{canary.name}'s plan is not paused", canary_view(self.services, canary))
        changed = self._change_progress(canary, progress, by, EventKind.CANARY_RESUMED)
        return m.Done(f"{canary.name}'s plan goes on", canary_view(self.services, changed))

    async def limits(self, request: m.SetLimits, by: str) -> m.Done:
        services = self.services
        canary = self._changeable_canary(request.name, "put limits on")
        known = check_limits(request.limits)
        ignores = canary.ignores_load if request.ignore_load is None else request.ignore_load
        before = dict(services.dataplane.bench.limits(canary.id))
        _check_can_be_judged({**before, **known}, canary.plan)
        evidence, changed = services.dataplane.bench.with_limits(canary.id, known)
        if not changed and ignores == canary.ignores_load:
            return m.Done(f"{canary.name} has these limits already", canary_view(services, canary))
        now = msgspec.structs.replace(canary, ignores_load=ignores)
        # The evidence holds what came in reports whose numbers must be on disk no later.
        services.dataplane.save()
        with services.store.transaction():
            services.store.canaries.put(now)
            if evidence is not None:
                services.store.canaries.put_evidence(canary.id, evidence)
            event = services.log_event(
                by,
                EventKind.CANARY_LIMITS,
                canary.model,
                before=", ".join(_words_of({name: before.get(name) for name in changed}, canary, now)),
                after=", ".join(_words_of({name: known[name] for name in changed}, now, canary)),
            )
        if evidence is not None:
            services.dataplane.bench.replace(canary.id, evidence)
        services.feed.publish(canary.id)
        services.announce(event)
        said = _judged_by(canary, {name: known[name] for name in changed}, complete({**before, **known}))
        if ignores != canary.ignores_load:
            which = "whatever the load" if ignores else "only while the load of both sides compares"
            said.append(f"{canary.name}'s times count for promotion {which}")
        return m.Done("; ".join(said), canary_view(services, now))

    async def promote(self, request: m.Promote, by: str) -> m.Started:
        model = self._changeable(request.name)
        canary = self.services.store.canaries.of(model.name)
        if job := self.services.store.jobs.of(model.name):
            raise busy(job)
        if canary is None:
            raise no_canary(model, "promote")
        after(canary, CanaryEvent.PROMOTE)
        check_ready(self.services, canary)
        return self._start(JobKind.PROMOTE, model.name, by, request)

    async def abort(self, request: m.Abort, by: str) -> m.Done:
        """Wins over the job that prepares a canary, and over a promote that has not committed (K5)."""
        services = self.services
        model = self._changeable(request.name)
        reason = request.reason or f"aborted by {by}"
        job = services.store.jobs.of(model.name)
        if job and job.kind in (JobKind.CANARY, JobKind.PROMOTE):
            stopped = await self._stop(job, Cancellation(by, reason))
            if services.store.canaries.of(model.name) is None and stopped.state is not JobState.DONE:
                return m.Done(f"{model.name}'s canary is out before it was ready; stable serves everything")
        canary = services.store.canaries.of(model.name)
        if canary is None:
            raise self._is_promoted(model) or no_canary(model, "abort")
        ended = await take_out(services, canary.id, by=by, ending=CanaryPhase.ABORTED, reason=reason)
        services.wish_clean_up()
        return m.Done(f"{ended.name} is out; stable serves everything", canary_view(services, ended))

    async def update(self, request: m.Update, by: str) -> m.Started:
        check_choice(request.weights)
        model = self._changeable(request.name)
        self._check_no_canary(model, "updated")
        check_engine(request, model, self.services.engines)
        check_source(request, model)
        return self._start(JobKind.UPDATE, model.name, by, request)

    async def rollback(self, request: m.Rollback, by: str) -> m.Started:
        model = self._changeable(request.name)
        self._check_no_canary(model, "rolled back")
        # Raises when there is nothing to go back to, or its weights are not on disk any more.
        self.services.spec(moved_back(model))
        return self._start(JobKind.ROLLBACK, model.name, by, request)

    async def cancel(self, request: m.CancelJob, by: str) -> m.Done:
        job = await self.runner.cancel(request.id, Cancellation(by, f"by {by}"))
        return m.Done(f"{job.id} is {job.state}: {job.outcome}")

    async def _stop(self, job: Job, cancellation: Cancellation) -> Job:
        try:
            return await self.runner.cancel(job.id, cancellation)
        except LlmgwError:
            # It ended, or a promote committed, while we asked: what the canary is now decides.
            return self.services.store.jobs.get(job.id)

    def _check_no_canary(self, model: Model, to_be: str = "") -> None:
        """Raises LlmgwError while it has one, naming the job that is at it if there is one.

        to_be: what the model is then not; empty: given a canary.
        """
        canary = self.services.store.canaries.of(model.name)
        if canary is None:
            return
        job = self.services.store.jobs.of(model.name)
        if job is not None and job.kind is not JobKind.CANARY:
            raise busy(job)
        raise _has_canary(canary, to_be)

    def _changeable_canary(self, name: str, verb: str) -> Canary:
        """The canary that a model has and that is not on its way out or up."""
        model = self._changeable(name)
        canary = self.services.store.canaries.of(model.name)
        if canary is None:
            raise no_canary(model, verb)
        if canary.phase not in (CanaryPhase.PREPARING, CanaryPhase.SERVING):
            after(canary, CanaryEvent.PROMOTE)  # Raises with the reason of this phase.
        return canary

    def _change_progress(self, canary: Canary, progress: Progress, by: str, what: EventKind) -> Canary:
        services = self.services
        changed = msgspec.structs.replace(canary, progress=progress)
        with services.store.transaction():
            services.store.canaries.put(changed)
            event = services.log_event(by, what, canary.model, after=f"at {canary.share:g} %")
        services.feed.publish(canary.id)
        services.announce(event)
        return changed

    def _is_promoted(self, model: Model) -> LlmgwError | None:
        """The refusal when the model's last canary is what it serves now."""
        last = next(iter(self.services.store.canaries.all(model.name, limit=1)), None)
        if last is None or last.phase is not CanaryPhase.PROMOTED or last.origin != model.origin:
            return None
        return already_promoted(model.name)

    def _start(self, kind: JobKind, model: str, by: str, request: msgspec.Struct) -> m.Started:
        return m.Started(job_view(self.runner.submit(kind, model, by, request)))

    def _changeable(self, name: str) -> Model:
        """The model, unless it is unknown or declared."""
        model = self.services.store.models.get(name)
        if model.declared:
            raise refused(
                "declared",
                f"{name} is declared in the configuration and is changed only there",
                hint="edit its entry under `models:` and send the daemon SIGHUP, or `llmgw ctl model add` another",
            )
        return model

    def _taken(self) -> set[str]:
        """Names in use, and those that an unfinished add will use."""
        taken = names(self.services.store.models.all())
        for job in self.services.store.jobs.unfinished():
            if job.kind is JobKind.ADD:
                adding = msgspec.msgpack.decode(job.args, type=m.AddModel)
                adapters = (adapter.name for adapter in adding.adapters)
                taken |= {*asked_for(adding.name, adding.aliases, adapters)}
        return taken


def check_gpus(gpus: int | None) -> None:
    """Raises LlmgwError for a number of GPUs that cannot be."""
    if gpus is not None and gpus < 0:
        raise unusable("bad_gpus", f"{gpus} GPUs are not possible: give 0 or more")


def check_limits(limits: dict[str, float | None]) -> dict[str, float | None]:
    """The limits themselves. Raises LlmgwError for one that does not exist or cannot be."""
    try:
        complete(limits)
    except LimitError as error:
        raise unusable("bad_limit", str(error)) from error
    return limits


def _check_can_be_judged(limits: dict[str, float | None], plan: Plan, *, is_awaited: bool = False) -> None:
    """Raises LlmgwError for what rests on a verdict that there will never be."""
    if any(value is not None for value in complete(limits).values()):
        return
    if plan.auto_promote:
        then = "the canary would never be found fine and promoted: leave a limit on, or start it without --auto-promote"
        then += " and promote it yourself"
    elif plan.deadline_s is not None and plan.on_deadline is OnDeadline.ABORT:
        then = "the canary would be undecided at its deadline whatever it does, and taken out: leave a limit on, or "
        then += "start it with --on-deadline hold"
    elif is_awaited:
        then = "there would be no verdict to wait for: leave a limit on, or start it without --until-verdict"
    else:
        return
    raise unusable("no_limits", f"with every limit off nothing is judged, so that {then}")


def _judged_by(canary: Canary, changed: dict[str, float | None], limits: dict[str, float | None]) -> list[str]:
    """What became of the limits that were changed, in sentences; `limits` are all of them now."""
    on = [f"{name} {written(name, value)}" for name, value in changed.items() if value is not None]
    off = [name for name, value in changed.items() if value is None]
    said = [f"{canary.name} is judged anew by {', '.join(on)}"] if on else []
    if off:
        by = "" if all(value is None for value in limits.values()) else f" by {', '.join(off)}"
        said.append(f"{canary.name} is not judged{by} any more")
    return said


def _words_of(limits: dict[str, float | None], canary: Canary, other: Canary) -> list[str]:
    """Limits as the event log has them, and how uneven load is taken where the change's `other` side differs in it."""
    words = [f"{name} {written(name, value)}" for name, value in limits.items()]
    if canary.ignores_load != other.ignores_load:
        words.append("uneven load ignored" if canary.ignores_load else "uneven load holds it")
    return words


def _no_plan(canary: Canary, verb: str, hint: str) -> LlmgwError:
    why = f"it keeps its {canary.share:g} % until a person changes that, or it serves worse and is taken out"
    return refused("no_plan", f"{canary.name} has no plan to {verb}: {why}", hint=hint)


def _has_canary(canary: Canary, to_be: str) -> LlmgwError:
    if canary.phase is CanaryPhase.REMOVING:
        return refused(
            "canary_going",
            f"{canary.model}'s canary at {canary.origin.short} is still being taken out",
            hint=f"see when it is gone with `llmgw ctl model canaries {canary.model}`, then ask again",
        )
    has = f"cannot be {to_be} while it has a canary" if to_be else "already has a canary"
    out = f"`llmgw ctl model abort {canary.model}`"
    return refused(
        "has_canary",
        f"{canary.model} {has}: {canary.name} at {canary.origin.short}, given {canary.share:g} %",
        hint=f"take that out with {out}, then ask again"
        if to_be
        else f"move to it with `llmgw ctl model promote {canary.model}`, or take it out with {out}",
    )
