"""What the daemon knows, as the views that people and scripts are shown."""

from datetime import datetime

from llmgwd.domain.canary import Canary
from llmgwd.domain.catalog import Model, Origin, as_before
from llmgwd.domain.differences import what_changed, what_differs
from llmgwd.domain.jobs import Job
from llmgwd.domain.plan import Standing, Wait, next_move
from llmgwd.domain.samples import bad, judged
from llmgwd.domain.traits import Traits
from llmgwd.engines.replica import Replica
from llmgwd.jobs.services import Services
from llmgwd.protocol.samples import Arm, ArmSample
from llmgwd.protocol.states import CanaryPhase, VerdictState
from llmgwd.protocol.views import (
    AdapterView,
    ArmView,
    CanaryView,
    JobView,
    MetricView,
    ModelView,
    OriginView,
    ReplicaView,
    VerdictView,
)
from llmgwd.verdict.load import LoadFigures
from llmgwd.verdict.metric_figures import MetricFigures
from llmgwd.verdict.report import Report
from llmgwd.verdict.sketch import quantile


def job_view(job: Job) -> JobView:
    return JobView(
        id=job.id,
        kind=job.kind,
        model=job.model,
        state=job.state,
        by=job.by,
        created=job.created,
        started=job.started,
        ended=job.ended,
        outcome=job.outcome,
        hint=job.hint,
        exit_status=job.exit_status,
        steps=job.steps,
    )


def origin_view(origin: Origin) -> OriginView:
    traits = origin.traits or Traits()
    return OriginView(
        repo=origin.repo,
        revision=origin.revision,
        files=origin.files,
        path=origin.path,
        size_bytes=origin.size_bytes,
        content=origin.content,
        context_length=traits.context_length,
        quantisation=traits.quantisation,
        urls=origin.urls,
        served_name=origin.served_name,
    )


def replica_view(replica: Replica) -> ReplicaView:
    return ReplicaView(
        id=replica.id,
        state=replica.state,
        address=replica.address,
        pid=replica.pid,
        revision=replica.spec.origin.revision,
        log="" if replica.is_external else str(replica.log),
        detail=replica.detail,
        failures=replica.failures,
        last_lines=replica.said,
        gpus=replica.gpus,
        memory_bytes=replica.needs.host_bytes if replica.needs else None,
        own_memory_bytes=replica.needs.private_bytes if replica.needs else None,
        gpu_memory_bytes=(replica.needs.gpu_bytes or None) if replica.needs else None,
        memory_measured=replica.needs is not None and replica.needs.measured,
    )


def model_view(services: Services, model: Model) -> ModelView:
    canary = services.store.canaries.of(model.name)
    job = services.store.jobs.of(model.name)
    return ModelView(
        name=model.name,
        description=model.description,
        engine=model.engine,
        engine_args=model.engine_args,
        origin=origin_view(model.origin),
        previous=origin_view(model.previous) if model.previous else None,
        aliases=model.aliases,
        fallbacks=model.fallbacks,
        declared=model.declared,
        wanted=model.replicas,
        ready=len(services.fleet.ready(model.name)),
        replicas=tuple(replica_view(replica) for replica in services.fleet.of(model.name)),
        canary=canary.name if canary else None,
        canary_share=canary.share if canary else None,
        job=job.id if job else None,
        changes=what_differs(before, model) if (before := as_before(model)) else "",
        canary_changes=_changes_of(canary) if canary else "",
        adapters=tuple(
            AdapterView(f"{model.name}:{adapter.name}", origin_view(adapter.origin)) for adapter in model.adapters
        ),
        gpus=model.gpus,
        fit_check=model.fit_check,
    )


def _changes_of(canary: Canary) -> str:
    """In what it differs from its model."""
    return ", ".join(filter(None, (what_changed(canary.stable_origin, canary.origin), canary.runs_otherwise)))


def canary_view(services: Services, canary: Canary) -> CanaryView:
    stable = services.dataplane.tally.of(canary, Arm.STABLE)
    candidate = services.dataplane.tally.of(canary, Arm.CANARY)
    now = canary.ended or services.now()
    report = services.dataplane.bench.report(canary, now, services.settings.canary.min_age)
    canary_load, stable_load = services.dataplane.bench.load(canary.id)
    next_words, next_at = _next(services, canary, report)
    job = services.store.jobs.of(canary.model)
    return CanaryView(
        id=canary.id,
        name=canary.name,
        model=canary.model,
        phase=canary.phase,
        by=canary.by,
        share=canary.share,
        share_real=_real_share(stable, candidate),
        origin=origin_view(canary.origin),
        stable_origin=origin_view(canary.stable_origin),
        started=canary.started,
        ended=canary.ended,
        stable=_arm_view(stable, stable_load),
        canary=_arm_view(candidate, canary_load),
        verdict=_verdict_view(report),
        next=next_words,
        next_at=next_at,
        tokens_share_real=_part(candidate.completion_tokens, stable.completion_tokens),
        steps=canary.plan.steps,
        step=canary.progress.step if canary.progress else 0,
        paused=canary.progress is not None and canary.progress.paused_at is not None,
        auto_promote=canary.plan.auto_promote,
        limits=dict(services.dataplane.bench.limits(canary.id)),
        reason=canary.reason,
        job=job.id if job else None,
        changes=_changes_of(canary),
        ignores_load=canary.ignores_load,
    )


def _real_share(stable: ArmSample, candidate: ArmSample) -> float | None:
    # A rescued request is the canary's in the split, whoever answered it in the end.
    return _part(sum(candidate.outcomes.values()), sum(stable.outcomes.values()))


def _part(ours: int, theirs: int) -> float | None:
    return 100 * ours / (ours + theirs) if ours + theirs else None


def _verdict_view(report: Report | None) -> VerdictView:
    if report is None:
        return VerdictView(VerdictState.UNDECIDED, "nothing is known of it")
    return VerdictView(
        VerdictState(report.state),
        report.sentence,
        tuple(_metric_view(figures) for figures in report.metrics),
        report.need.requests,
        report.need.seconds,
    )


def _metric_view(figures: MetricFigures) -> MetricView:
    return MetricView(
        metric=figures.metric,
        state=figures.state,
        limit=figures.limit,
        canary_n=figures.canary_n,
        stable_n=figures.stable_n,
        canary_value=figures.canary_value,
        stable_value=figures.stable_value,
        low=figures.low,
        high=figures.high,
    )


def _arm_view(sample: ArmSample, load: LoadFigures) -> ArmView:
    requests = judged(sample)
    token_time = quantile(sample.token_time, 0.5)
    return ArmView(
        revision=sample.revision,
        requests=requests,
        outcomes=dict(sample.outcomes),
        bad_share=bad(sample) / requests if requests else None,
        length_share=sample.length_limited / requests if requests else None,
        ttft_s=quantile(sample.ttft, 0.5),
        tokens_per_s=1 / token_time if token_time else None,
        prompt_tokens=sample.prompt_tokens,
        completion_tokens=sample.completion_tokens,
        forced=sample.forced,
        rescued=sample.rescued,
        in_flight=load.in_flight,
        slots_busy=load.busy,
        output_tokens_per_s=load.tokens_per_s,
    )


def _ways_on(canary: Canary, standing: Standing, move: Wait) -> list[str]:
    """What a person can do about it."""
    ctl = "llmgw ctl model"
    ways = [f"`{ctl} resume {canary.model}` lets it go on"] if move.for_resume else []
    if canary.share == 0:
        is_worse = standing.verdict is VerdictState.WORSE
        ways.append(
            f"`{ctl} abort {canary.model}` takes it out"
            if is_worse
            else f"`{ctl} percent {canary.model} N` gives it requests"
        )
    return ways


def _next(services: Services, canary: Canary, report: Report | None) -> tuple[str, datetime | None]:
    """What happens next and when, or why nothing does."""
    match canary.phase:
        case CanaryPhase.PREPARING:
            return "gets its share once it has answered", None
        case CanaryPhase.SERVING if not services.fleet.ready(canary.name):
            said = "; ".join(each.detail for each in services.fleet.of(canary.name) if each.detail)
            return f"stable serves everything until its replica is ready again: {said or 'it is starting'}", None
        case CanaryPhase.SERVING if canary.progress is not None and report is not None:
            judged = services.dataplane.bench.judged(canary.id)
            standing = Standing(VerdictState(report.state), canary.share, judged)
            move = next_move(canary.plan, canary.progress, standing, services.now())
            if isinstance(move, Wait):
                return "; ".join((move.why, *_ways_on(canary, standing, move))), move.until
            return "acts at the next look", None
        case CanaryPhase.PROMOTING:
            return "its replica becomes the model's", None
        case CanaryPhase.REMOVING:
            return "is being taken out", None
    return "nothing: it has ended", None
