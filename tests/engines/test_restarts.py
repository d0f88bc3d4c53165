"""Pauses between restarts: growing, bounded, and short again after a steady time."""

import pytest

from llmgwd.engines.restarts import failures_in_a_row, pause_s


@pytest.mark.parametrize(
    ("failures", "pause"), [(1, 1.0), (2, 2.0), (3, 4.0), (6, 32.0), (7, 60.0), (8, 60.0), (10_000, 60.0)]
)
def test_a_pause_doubles_up_to_a_minute(failures: int, pause: float) -> None:
    assert pause_s(failures) == pause


@pytest.mark.parametrize(
    ("before", "served_s", "failures"),
    [
        pytest.param(0, 0.0, 1, id="first"),
        pytest.param(4, 0.0, 5, id="never ready"),
        pytest.param(4, 59.0, 5, id="not for long"),
        pytest.param(4, 60.0, 1, id="steady"),
    ],
)
def test_failures_in_a_row_begin_anew_after_a_steady_time(before: int, served_s: float, failures: int) -> None:
    assert failures_in_a_row(before, served_s) == failures
