"""What newer weights are chosen like."""

import pytest

from llmgwd.domain.catalog import Origin
from llmgwd.domain.traits import Traits
from llmgwd.jobs.acquire import what_is_served

Q8 = Traits(quantisation="Q8_0")


@pytest.mark.parametrize(
    ("served", "like"),
    [
        pytest.param(Origin(repo="a/b", files=("m.gguf",)), (("m.gguf",), None), id="repository"),
        pytest.param(Origin(repo="a/b", files=("m.gguf",), traits=Q8), (("m.gguf",), "Q8_0"), id="and-its-header"),
        pytest.param(Origin(path="/m-Q8_0.gguf", files=("m-Q8_0.gguf",)), (("m-Q8_0.gguf",), None), id="local-name"),
        pytest.param(Origin(path="/m.gguf", files=("m.gguf",), traits=Q8), (("m.gguf",), "Q8_0"), id="local-header"),
        pytest.param(Origin(path="/m.gguf", files=("m.gguf",)), ((), None), id="local-that-tells-nothing"),
        pytest.param(Origin(path="/m", files=("config.json",)), (("config.json",), None), id="local-folder"),
        pytest.param(Origin(), ((), None), id="nothing"),
    ],
)
def test_newer_weights_are_chosen_like_what_is_served(served: Origin, like: tuple[tuple[str, ...], str | None]) -> None:
    assert what_is_served(served) == like
