"""`--json` is one document on stdout, whatever happens."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmgwd.protocol import messages as m
from llmgwd.protocol.states import JobState
from llmgwd.protocol.views import (
    CanaryView,
    EngineView,
    JobView,
    ModelView,
    PreviewView,
    PrunedView,
    StatusView,
    UpdateView,
    VerifiedView,
    WeightsView,
)
from tests.ctl.house import (
    CANARY,
    CANARY_ID,
    CHAT,
    ENGINE,
    EVENTS,
    PENDING_JOB,
    PREVIEW,
    STATUS,
    UPDATES,
    WEIGHTS,
    course,
    followed,
    well,
)
from tests.ctl.program import llmgw
from tests.ctl.scripted_daemon import ScriptedDaemon, Word


@pytest.mark.parametrize(
    ("argv", "kind", "first"),
    [
        ("model list", list[ModelView], CHAT),
        ("model show chat", ModelView, CHAT),
        ("model canaries", list[CanaryView], CANARY),
        ("jobs list", list[JobView], PENDING_JOB),
        ("jobs show x", JobView, None),
        ("status", StatusView, STATUS),
        ("events", list[Any], json.loads(msgspec.json.encode(EVENTS[0]))),
        ("model updates", list[UpdateView], UPDATES[0]),
        ("weights list", list[WeightsView], WEIGHTS.revisions[0]),
        ("weights prune --dry-run", list[PrunedView], None),
        ("weights verify", list[VerifiedView], None),
        ("engines list", list[EngineView], ENGINE),
        ("engines show vllm", EngineView, ENGINE),
        ("model add chat --repo a/b --dry-run", PreviewView, PREVIEW),
        ("model canary chat --dry-run", PreviewView, PREVIEW),
        ("model canary chat", JobView, None),
        ("model canary chat --detach", JobView, PENDING_JOB),
        ("model canary chat --until-verdict", CanaryView, None),
        ("model add chat --repo a/b", JobView, None),
        ("model remove chat --yes", JobView, None),
        ("model update chat", JobView, None),
        ("model promote chat", JobView, None),
        ("model rollback chat", JobView, None),
        ("jobs watch x", JobView, None),
        ("model percent chat 5", dict[str, str], {"message": "chat-canary is given 5 % of chat's requests"}),
        ("model abort chat", dict[str, str], {"message": "the canary of chat is out, chat serves everything"}),
        ("jobs cancel x", dict[str, str], {"message": "x was cancelled and what it did is undone"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_command_prints_one_document(daemon: ScriptedDaemon, argv: str, kind: Any, first: Any) -> None:
    ended = llmgw("ctl", *argv.split(), "--json", socket=daemon.path)
    assert (ended.status, ended.stderr) == (0, "")
    document = msgspec.json.decode(ended.stdout, type=kind)
    if first is not None:
        assert (document[0] if isinstance(document, list) else document) == first


def test_a_verb_prints_its_job_as_it_ended(daemon: ScriptedDaemon) -> None:
    ended = llmgw("ctl", "model", "canary", "chat", "--json", socket=daemon.path)
    job = msgspec.json.decode(ended.stdout, type=JobView)
    assert (job.id, job.state) == (CANARY_ID, JobState.DONE)


def test_a_refusal_is_a_document_and_words(daemon: ScriptedDaemon) -> None:
    ended = llmgw("ctl", "model", "show", "nope", "--json", socket=daemon.path)
    assert ended.status == 4
    error = json.loads(ended.stdout)["error"]
    assert (error["code"], error["message"], error["status"]) == ("no_such_model", "there is no model nope", 4)
    assert "there is no model nope" in ended.stderr


def test_a_failed_job_is_the_document_and_words(socket_path: Path) -> None:
    def script(request: m.Request) -> Iterator[Word]:
        yield from followed(course(fail_at=2)) if isinstance(request, m.WatchJob) else well()(request)

    with ScriptedDaemon(socket_path, script):
        ended = llmgw("ctl", "model", "canary", "chat", "--json", socket=socket_path)
    assert ended.status == 1
    assert msgspec.json.decode(ended.stdout, type=JobView).state is JobState.FAILED
    assert "failed at step checksums" in ended.stderr


def test_no_daemon_is_a_document_too(socket_path: Path) -> None:
    ended = llmgw("ctl", "model", "list", "--json", socket=socket_path)
    assert ended.status == 69
    assert json.loads(ended.stdout)["error"]["code"] == "no_daemon"
