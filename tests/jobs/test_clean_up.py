import pytest

from llmgwd.domain.catalog import Adapter, Model, Origin
from llmgwd.jobs.clean_up import kept


def model(name: str, serves: str, before: str | None = None, repo: str = "r") -> Model:
    previous = Origin(repo=repo, revision=before) if before else None
    return Model(name=name, origin=Origin(repo=repo, revision=serves), previous=previous)


ON_DISK = [("r", "d"), ("r", "c"), ("r", "b"), ("r", "a"), ("gone", "x")]


@pytest.mark.parametrize(
    ("models", "keep_revisions", "keep"),
    [
        pytest.param([model("m", "d", "c")], 2, {"d", "c"}, id="served and previous"),
        pytest.param([model("m", "d", "a")], 2, {"d", "a"}, id="previous before newer ones"),
        pytest.param([model("m", "d", "a")], 3, {"d", "a", "c"}, id="then the newest"),
        pytest.param([model("m", "d", "a")], 1, {"d", "a"}, id="previous also beyond them"),
        pytest.param(
            [model("m", "d", "c"), model("n", "b", "a")],
            2,
            {"d", "c", "b", "a"},
            id="previous of models that share a repository",
        ),
        pytest.param([model("m", "d"), model("n", "a")], 1, {"d", "a"}, id="all served"),
        pytest.param(
            [model("m", "c", "a"), Model(name="m-canary", origin=Origin(repo="r", revision="d"), canary_of="m")],
            2,
            {"c", "a", "d"},
            id="a canary costs nobody a place",
        ),
        pytest.param([model("m", "zz", repo="other")], 2, set(), id="nothing of a repository that nobody uses"),
        pytest.param([Model(name="m", origin=Origin(path="/x"))], 2, set(), id="local weights are not ours"),
        pytest.param(
            [Model(name="m", origin=Origin(path="/x"), adapters=(Adapter("l", Origin(repo="r", revision="a")),))],
            1,
            {"a"},
            id="an adapter stays",
        ),
    ],
)
def test_what_clean_up_leaves(models: list[Model], keep_revisions: int, keep: set[str]) -> None:
    assert {sha for repo, sha in kept(models, ON_DISK, keep_revisions) if repo == "r"} == keep
    assert not {sha for repo, sha in kept(models, ON_DISK, keep_revisions) if repo == "gone"}
