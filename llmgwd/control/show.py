"""What the daemon knows, as the views that people and scripts are shown."""

from llmgwd.domain.canary import Canary
from llmgwd.domain.catalog import Model, Origin
from llmgwd.domain.jobs import Job
from llmgwd.domain.samples import bad, judged
from llmgwd.engines.replica import Replica
from llmgwd.jobs.services import Services
from llmgwd.protocol.samples import Arm, ArmSample
from llmgwd.protocol.states import CanaryPhase, VerdictState
from llmgwd.protocol.views import ArmView, CanaryView, JobView, ModelView, OriginView, ReplicaView, VerdictView
from llmgwd.verdict.judge import Figures
from llmgwd.watch import figures_of, verdict_on


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
    return OriginView(origin.repo, origin.revision, origin.files, origin.path, origin.size_bytes)


def replica_view(replica: Replica) -> ReplicaView:
    return ReplicaView(
        id=replica.id,
        state=replica.state,
        address=replica.address,
        pid=replica.pid,
        revision=replica.spec.origin.revision,
        log=str(replica.log),
        detail=replica.detail,
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
    )


def canary_view(services: Services, canary: Canary) -> CanaryView:
    stable = services.dataplane.tally.of(canary, Arm.STABLE)
    candidate = services.dataplane.tally.of(canary, Arm.CANARY)
    verdict = verdict_on(services, canary)
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
        stable=_arm_view(stable),
        canary=_arm_view(candidate),
        verdict=VerdictView(VerdictState(verdict.state), verdict.sentence),
        next=_next(services, canary),
        reason=canary.reason,
        job=job.id if job else None,
    )


def _real_share(stable: ArmSample, candidate: ArmSample) -> float | None:
    ours = sum(candidate.outcomes.values())
    # A rescued request is the canary's in the split, whoever answered it in the end.
    total = ours + sum(stable.outcomes.values())
    return 100 * ours / total if total else None


def _arm_view(sample: ArmSample) -> ArmView:
    figures: Figures = figures_of(sample)
    return ArmView(
        revision=sample.revision,
        requests=judged(sample),
        outcomes=dict(sample.outcomes),
        bad_share=bad(sample) / judged(sample) if judged(sample) else None,
        length_share=figures.length_share,
        ttft_s=figures.ttft_s,
        tokens_per_s=figures.tokens_per_s,
        prompt_tokens=sample.prompt_tokens,
        completion_tokens=sample.completion_tokens,
        forced=sample.forced,
        rescued=sample.rescued,
    )


def _next(services: Services, canary: Canary) -> str:
    """What happens next, or why nothing does."""
    match canary.phase:
        case CanaryPhase.PREPARING:
            return "gets its share once it has answered"
        case CanaryPhase.SERVING if not services.fleet.ready(canary.name):
            said = "; ".join(each.detail for each in services.fleet.of(canary.name) if each.detail)
            return f"stable serves everything until its replica is ready again: {said or 'it is starting'}"
        case CanaryPhase.SERVING if canary.share == 0:
            return f"nothing: its share is 0; `llmgw ctl model percent {canary.model} N` gives it requests"
        case CanaryPhase.SERVING:
            every = services.settings.canary.every
            return (
                f"looked at every {every:g} s: taken out when it is worse; "
                f"otherwise it waits for `llmgw ctl model promote {canary.model}` or `abort`"
            )
        case CanaryPhase.PROMOTING:
            return "its replica becomes the model's"
        case CanaryPhase.REMOVING:
            return "is being taken out"
    return "nothing: it has ended"
