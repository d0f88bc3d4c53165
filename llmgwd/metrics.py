"""What Prometheus is told, named after OpenTelemetry's conventions for generative AI where there is one."""

from collections.abc import Iterable, Iterator, Mapping
from math import exp

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from llmgwd.dataplane.link import Link
from llmgwd.dataplane.totals import Totals
from llmgwd.protocol.samples import ArmSample
from llmgwd.verdict.sketch import WIDTH

ARM = ("model", "arm", "revision")
COUNTERS = (
    ("llmgw_requests_forced", "Requests that forced their arm", "forced"),
    ("llmgw_requests_rescued", "Requests that a canary failed and stable answered", "rescued"),
    ("llmgw_requests_stood_in", "Requests of the other arm that this one took because the other could not", "stood_in"),
    ("llmgw_requests_turned_away", "Requests that no replica was ready for, or had room for in time", "turned_away"),
    ("llmgw_requests_fell_back", "Requests that a fallback of the model answered in its place", "fell_back"),
    ("llmgw_answers_length_limited", "Whole answers that ended at the length limit", "length_limited"),
    ("llmgw_answers_degenerate", "Whole answers that repeat themselves or are not the JSON asked for", "degenerate"),
)
# The boundaries are those of the conventions; what is missing in them for slow engines is added at the end.
TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0)
TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
DURATION_S = tuple(0.01 * 2**power for power in range(17))
TIMES = (
    ("gen_ai_server_time_to_first_token_seconds", "Time to the first token of an answer", "ttft", TTFT_S),
    ("gen_ai_server_time_per_output_token_seconds", "Time for each token after the first", "token_time", TOKEN_S),
    ("gen_ai_server_request_duration_seconds", "Time from request to the end of its answer", "duration", DURATION_S),
    ("llmgw_queue_wait_seconds", "Time that requests waited for a replica, of those that had to", "waited", DURATION_S),
)
SIZES = tuple(4**power for power in range(14))


class GatewayCollector(Collector):
    """Reads what the workers reported; nothing is counted here."""

    def __init__(self, totals: Totals, link: Link) -> None:
        self._totals = totals
        self._link = link

    def collect(self) -> Iterator[Metric]:
        samples = self._totals.all()
        yield _requests(samples)
        for name, text, field in COUNTERS:
            counter = CounterMetricFamily(name, text, labels=ARM)
            for sample in samples:
                counter.add_metric(_arm(sample), getattr(sample, field))
            yield counter
        for name, text, field, bounds in TIMES:
            times = HistogramMetricFamily(name, text, labels=ARM)
            for sample in samples:
                buckets, total = fold_times(getattr(sample, field), bounds)
                times.add_metric(_arm(sample), buckets, total)
            yield times
        yield _tokens(samples)
        yield from self._present()

    def _present(self) -> Iterator[Metric]:
        in_flight = GaugeMetricFamily("llmgw_requests_in_flight", "Requests at an engine now", labels=("model", "arm"))
        waiting = GaugeMetricFamily("llmgw_requests_waiting", "Requests in line for a replica", labels=("model", "arm"))
        for (model, arm), load in sorted(self._link.load().items()):
            in_flight.add_metric((model, arm.value), load.in_flight)
            waiting.add_metric((model, arm.value), load.waiting)
        yield in_flight
        yield waiting
        yield GaugeMetricFamily("llmgw_gateway_workers", "Gateway workers that are connected", len(self._link.workers))


class Metrics:
    """What `GET /metrics` answers."""

    def __init__(self, totals: Totals, link: Link) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(GatewayCollector(totals, link))
        ProcessCollector(registry=self._registry)

    def page(self, accept: str) -> tuple[bytes, str]:
        """The page and its content type, in the format that this Accept header prefers."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


def fold_times(histogram: Mapping[int, int], bounds: Iterable[float]) -> tuple[list[tuple[str, float]], float]:
    """Cumulative buckets and the sum, of the log-bucket histograms of `llmgwd.verdict.sketch`.

    A value is taken as its bucket's geometric middle, so a boundary is off by 2.2 % at most, and so is the sum.
    """
    values = sorted((exp((index + 0.5) * WIDTH), count) for index, count in histogram.items())
    return _cumulative(values, bounds), sum(value * count for value, count in values)


def fold_sizes(histogram: Mapping[int, int]) -> list[tuple[str, float]]:
    """Cumulative buckets of token counts, which are known by the power of two that they do not exceed; exact."""
    return _cumulative(sorted((float(2**index), count) for index, count in histogram.items()), SIZES)


def _cumulative(values: list[tuple[float, int]], bounds: Iterable[float]) -> list[tuple[str, float]]:
    buckets: list[tuple[str, float]] = []
    for bound in bounds:
        name = str(floatToGoString(bound))  # type: ignore[no-untyped-call]
        buckets.append((name, sum(count for value, count in values if value <= bound)))
    return [*buckets, ("+Inf", sum(count for _, count in values))]


def _arm(sample: ArmSample) -> tuple[str, str, str]:
    return sample.model, sample.arm.value, sample.revision


def _requests(samples: Iterable[ArmSample]) -> Metric:
    requests = CounterMetricFamily(
        "llmgw_requests", "Requests by how they ended; a rescued one is on both arms", labels=(*ARM, "outcome")
    )
    for sample in samples:
        for outcome, count in sorted(sample.outcomes.items()):
            requests.add_metric((*_arm(sample), outcome.value), count)
    return requests


def _tokens(samples: Iterable[ArmSample]) -> Metric:
    usage = HistogramMetricFamily(
        "gen_ai_client_token_usage", "Tokens of requests whose engine told", labels=(*ARM, "gen_ai_token_type")
    )
    for sample in samples:
        usage.add_metric((*_arm(sample), "input"), fold_sizes(sample.prompt_sizes), sample.prompt_tokens)
        usage.add_metric((*_arm(sample), "output"), fold_sizes(sample.completion_sizes), sample.completion_tokens)
    return usage
