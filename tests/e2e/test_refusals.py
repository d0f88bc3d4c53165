"""What the present state does not allow is refused with its status, and a message that names the way on (K2)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgwd.verdict.limits import KNOWN
from tests.support.house import House, add_chat, commit, house_on, wait_until
from tests.support.toy_engine import Behaviour

ALL_OFF = " ".join(f"--limit {name}=off" for name in KNOWN)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One house for all: `chat` with a canary, `plain` without a repository, `base` declared, `slow` with a job."""
    root = tmp_path_factory.mktemp("house")
    weights = root / "local.gguf"
    weights.write_bytes(Behaviour().weights())
    models = {"models": [{"name": "base", "path": str(weights), "engine": "toy"}]}
    with house_on(root, models) as shared:
        add_chat(shared)
        commit(shared, Behaviour(words="newer"))
        shared.ok("model", "canary", "chat", "--percent", "15")
        shared.ok("model", "add", "plain", "--path", str(weights), "--engine", "toy")
        slow = Path(root / "slow.gguf")
        slow.write_bytes(Behaviour(load_s=600).weights())
        shared.ok("model", "add", "slow", "--path", str(weights), "--engine", "toy")
        shared.ok("model", "canary", "slow", "--path", str(slow), "--detach")
        wait_until(lambda: shared.canary("slow"))
        yield shared


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        pytest.param(
            "canary chat", 3, ("already has a canary", "given 15 %", "promote chat", "abort chat"), id="has a canary"
        ),
        pytest.param("canary base", 3, ("declared in the configuration", "SIGHUP"), id="canary of a declared model"),
        pytest.param("remove base --yes", 3, ("declared",), id="remove a declared model"),
        pytest.param("promote base", 3, ("declared",), id="promote a declared model"),
        pytest.param("canary plain", 3, ("no repository", "--repo ORG/REPO", "--path"), id="no repository"),
        pytest.param("canary slow", 3, ("already has a canary",), id="canary on the way"),
        pytest.param("promote slow", 3, ("has a running job: canary-", "jobs watch"), id="promote during a job"),
        pytest.param("rollback plain", 3, ("no previous weights",), id="nothing to go back to"),
        pytest.param(
            "rollback chat",
            3,
            ("chat cannot be rolled back while it has a canary", "abort chat"),
            id="rollback with a canary",
        ),
        pytest.param(
            "remove chat --yes",
            3,
            ("chat cannot be removed while it has a canary", "abort chat"),
            id="remove with a canary",
        ),
        pytest.param(
            "update chat", 3, ("chat cannot be updated while it has a canary", "abort chat"), id="update with a canary"
        ),
        pytest.param("promote plain", 3, ("plain has no canary to promote", "canary plain --path FILE"), id="promote"),
        pytest.param("abort plain", 3, ("plain has no canary to abort", "canary plain"), id="abort without a canary"),
        pytest.param("percent plain 5", 3, ("plain has no canary", "canary plain"), id="percent without a canary"),
        pytest.param("pause chat", 3, ("no plan to pause", "keeps its 15 %", "percent chat 0"), id="pause a share"),
        pytest.param("resume chat", 3, ("no plan to resume", "percent chat N"), id="resume a share"),
        pytest.param("pause plain", 3, ("no canary to pause", "canary plain --path FILE"), id="pause without a canary"),
        pytest.param("percent chat 101", 2, ("0 to 100",), id="percent over 100"),
        pytest.param("percent chat -- -1", 2, ("0 to 100",), id="percent below 0"),
        pytest.param("canary plain --percent 200", 2, ("0 to 100",), id="canary over 100"),
        pytest.param(f"canary plain --auto-promote {ALL_OFF}", 2, ("every limit off",), id="nothing can become fine"),
        pytest.param(
            f"canary plain --deadline 1h --on-deadline abort {ALL_OFF}",
            2,
            ("undecided at its deadline whatever it does", "--on-deadline hold"),
            id="nothing can be decided by the deadline",
        ),
        pytest.param(
            f"canary plain --until-verdict {ALL_OFF}",
            2,
            ("no verdict to wait for", "without --until-verdict"),
            id="no verdict to wait for",
        ),
        pytest.param("canary nobody", 4, ("there is no model nobody",), id="unknown model"),
        pytest.param("show chta", 4, ("did you mean chat?",), id="near miss"),
        pytest.param("show chat-canary", 4, ("there is no model chat-canary",), id="a canary is no model"),
        pytest.param("add chat --repo a/b", 3, ("already a model, alias or adapter chat",), id="name taken"),
        pytest.param("add new-canary --repo a/b", 2, ("reserved",), id="reserved name"),
        pytest.param("add new --repo a/b --engine warp", 2, ("there is no engine warp", "llamacpp"), id="engine"),
        pytest.param("add new", 2, ("--repo", "--path"), id="no weights"),
        pytest.param("add new --repo a/b --path /x", 2, ("--path",), id="two sources"),
        pytest.param("add new --repo no/such --engine toy", 1, ("no/such",), id="unknown repository"),
        pytest.param("add new --path /no/such.gguf --engine toy", 1, ("/no/such.gguf",), id="no such file"),
    ],
)
def test_refusals_say_why_and_what_to_do(house: House, words: str, status: int, says: tuple[str, ...]) -> None:
    before = house.json("model", "list")
    done = house.ctl("model", *words.split())
    assert done.returncode == status, done.stderr
    for each in says:
        assert each in done.stderr
    assert done.stdout == ""
    after = house.json("model", "list")
    assert [model["origin"] for model in before] == [model["origin"] for model in after]


def test_unknown_jobs_are_said_so(house: House) -> None:
    for words in (("show", "add-1-99"), ("watch", "add-1-99"), ("cancel", "add-1-99")):
        done = house.ctl("jobs", *words)
        assert (done.returncode, "there is no job add-1-99" in done.stderr) == (4, True), done.stderr
