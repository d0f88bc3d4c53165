"""The demo weights are one model in four forms."""

import pytest
from gguf import GGUFReader, Keys, LlamaFileType
from gguf.constants import GGMLQuantizationType

from tests.support.demo_weights import DemoWeights, ensure_demo_weights

pytestmark = pytest.mark.weights


@pytest.fixture(scope="module")
def weights() -> DemoWeights:
    return ensure_demo_weights()


@pytest.fixture(scope="module")
def base(weights: DemoWeights) -> GGUFReader:
    return GGUFReader(weights.base)


def metadata(reader: GGUFReader) -> dict[str, object]:
    return {name: field.contents() for name, field in reader.fields.items()}


@pytest.mark.parametrize(
    ("form", "kind"),
    [("good", GGMLQuantizationType.Q8_0), ("damaged", GGMLQuantizationType.Q4_0)],
    ids=["good", "damaged"],
)
def test_a_requantised_file_keeps_all_metadata_and_tensors(
    weights: DemoWeights, base: GGUFReader, form: str, kind: GGMLQuantizationType
) -> None:
    made = GGUFReader(getattr(weights, form))

    file_type = int(LlamaFileType[f"MOSTLY_{kind.name}"])
    assert metadata(made) == metadata(base) | {Keys.General.FILE_TYPE: file_type}
    assert [t.name for t in made.tensors] == [t.name for t in base.tensors]
    assert [t.shape.tolist() for t in made.tensors] == [t.shape.tolist() for t in base.tensors]
    assert {t.tensor_type for t in made.tensors if len(t.shape) > 1} == {kind}
    assert {t.tensor_type for t in made.tensors if len(t.shape) == 1} == {GGMLQuantizationType.F32}


def test_the_broken_file_is_the_first_half_of_the_good_one(weights: DemoWeights) -> None:
    good = weights.good.read_bytes()
    assert weights.broken.read_bytes() == good[: len(good) // 2]
