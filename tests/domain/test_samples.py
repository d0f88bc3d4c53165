from hypothesis import given
from hypothesis import strategies as st

from llmgwd.domain.samples import bad, judged, merged
from llmgwd.protocol.samples import Arm, ArmSample, Outcome

counts = st.integers(0, 100)
samples = st.builds(
    ArmSample,
    model=st.just("chat"),
    arm=st.just(Arm.CANARY),
    revision=st.just("abc"),
    canary=st.just("c1"),
    outcomes=st.dictionaries(st.sampled_from(Outcome), counts),
    forced=counts,
    rescued=counts,
    length_limited=counts,
    prompt_tokens=counts,
    completion_tokens=counts,
    ttft=st.dictionaries(st.integers(-5, 5), counts),
    token_time=st.dictionaries(st.integers(-5, 5), counts),
)


@given(samples, samples, samples)
def test_samples_add_up_in_any_order(a: ArmSample, b: ArmSample, c: ArmSample) -> None:
    assert merged(merged(a, b), c) == merged(a, merged(b, c)) == merged(merged(c, a), b)


def test_cancelled_requests_are_nobodys_fault() -> None:
    sample = ArmSample(model="chat", arm=Arm.STABLE, revision="abc", outcomes=dict.fromkeys(Outcome, 1))
    assert judged(sample) == 5
    assert bad(sample) == 3
