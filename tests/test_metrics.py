"""What `GET /metrics` says of samples that are known."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus
from starlette.testclient import TestClient

from llmgwd.admin import admin_app
from llmgwd.dataplane.link import Link
from llmgwd.dataplane.totals import Totals
from llmgwd.metrics import DURATION_S, SIZES, TTFT_S, Metrics, fold_sizes, fold_times
from llmgwd.protocol.samples import Arm, ArmSample, Outcome
from llmgwd.verdict.sketch import bucket

SAMPLE = ArmSample(
    "chat",
    Arm.CANARY,
    "abc1234",
    outcomes={Outcome.OK: 7, Outcome.ERROR: 2},
    rescued=2,
    degenerate=1,
    prompt_tokens=35,
    completion_tokens=70,
    prompt_sizes={3: 7},
    completion_sizes={4: 7},
    ttft={bucket(0.03): 6, bucket(3.0): 1},
    duration={bucket(1.0): 7},
)
ARM = {"model": "chat", "arm": "canary", "revision": "abc1234"}


@pytest.fixture
def metrics(tmp_path: Path) -> Metrics:
    totals = Totals(lambda: 0.0)
    totals.add([SAMPLE])
    return Metrics(totals, Link(tmp_path / "unused", lambda samples: None, totals))


def values(page: bytes, name: str) -> dict[tuple[str, ...], float]:
    """Each sample of that name, by its labels besides the arm's."""
    return {
        tuple(value for label, value in sample.labels.items() if label not in ARM): sample.value
        for family in prometheus(page.decode())
        for sample in family.samples
        if sample.name == name and ARM.items() <= sample.labels.items()
    }


def test_counts_are_by_model_arm_revision_and_outcome(metrics: Metrics) -> None:
    page, _ = metrics.page("")
    assert values(page, "llmgw_requests_total") == {("ok",): 7, ("error",): 2}
    assert values(page, "llmgw_requests_rescued_total") == {(): 2}
    assert values(page, "llmgw_answers_degenerate_total") == {(): 1}
    assert values(page, "llmgw_requests_turned_away_total") == {(): 0}


def test_times_are_histograms_of_the_conventions_boundaries(metrics: Metrics) -> None:
    page, _ = metrics.page("")
    ttft = values(page, "gen_ai_server_time_to_first_token_seconds_bucket")
    assert (ttft["0.02",], ttft["0.04",], ttft["2.5",], ttft["5.0",], ttft["+Inf",]) == (0, 6, 6, 7, 7)
    assert values(page, "gen_ai_server_time_to_first_token_seconds_count") == {(): 7}
    assert values(page, "gen_ai_server_time_to_first_token_seconds_sum")[()] == pytest.approx(3.18, rel=0.03)
    assert values(page, "gen_ai_server_request_duration_seconds_count") == {(): 7}
    assert values(page, "gen_ai_server_time_per_output_token_seconds_count") == {(): 0}


def test_tokens_are_exact(metrics: Metrics) -> None:
    page, _ = metrics.page("")
    assert values(page, "gen_ai_client_token_usage_sum") == {("input",): 35, ("output",): 70}
    usage = values(page, "gen_ai_client_token_usage_bucket")
    assert (usage["input", "4.0"], usage["input", "16.0"], usage["output", "+Inf"]) == (0, 7, 7)


def test_the_page_is_valid_in_both_formats_and_served(metrics: Metrics) -> None:
    client = TestClient(admin_app(lambda: None, metrics.page))  # type: ignore[arg-type, return-value]
    plain = client.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain")
    assert list(prometheus(plain.text))
    modern = client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert modern.headers["content-type"].startswith("application/openmetrics-text")
    names = {family.name for family in openmetrics(modern.text)}  # type: ignore[no-untyped-call]
    assert {"llmgw_requests", "process_cpu_seconds"} <= names


@given(st.lists(st.floats(1e-5, 1e4), max_size=30))
def test_folding_loses_nobody_and_is_off_by_a_buckets_width_at_most(seconds: list[float]) -> None:
    histogram: dict[int, int] = {}
    for each in seconds:
        histogram[bucket(each)] = histogram.get(bucket(each), 0) + 1
    for bounds in (TTFT_S, DURATION_S):
        buckets, total = fold_times(histogram, bounds)
        assert total == pytest.approx(sum(seconds), rel=0.025)
        assert buckets[-1] == ("+Inf", len(seconds))
        for bound, (name, count) in zip(bounds, buckets, strict=False):
            assert float(name) == bound
            assert (
                sum(each <= bound / 1.05 for each in seconds) <= count <= sum(each <= bound * 1.05 for each in seconds)
            )


def test_sizes_fold_exactly() -> None:
    buckets = dict(fold_sizes({0: 1, 1: 1, 2: 1, 3: 1, 26: 1, 27: 1}))
    assert (buckets["1.0"], buckets["4.0"], buckets["16.0"], buckets["+Inf"]) == (1, 3, 4, 6)
    assert len(buckets) == len(SIZES) + 1
