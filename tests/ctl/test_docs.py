"""What the pages say is what the program does."""

import re
import subprocess
import sys
from typing import get_args

import pytest

from llmgwd.protocol.exit_status import ExitStatus
from llmgwd.protocol.messages import Reply, Request
from tests.ctl.program import ROOT, llmgw

PROTOCOL = (ROOT / "docs" / "protocol.md").read_text()
CLI = (ROOT / "docs" / "cli.md").read_text()


def test_the_byte_example_is_what_its_command_prints() -> None:
    found = re.search(r"```python\n(.*?)```\n\nprints\n\n```text\n(.*?)```", PROTOCOL, re.DOTALL)
    assert found
    code, shown = found.groups()
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == shown


@pytest.mark.parametrize("message", get_args(Request) + get_args(Reply), ids=lambda message: message.__name__)
def test_every_message_is_described(message: type) -> None:
    assert f"`{message.__name__}`" in PROTOCOL


@pytest.mark.parametrize("status", list(ExitStatus))
def test_every_exit_status_is_described(status: ExitStatus) -> None:
    assert re.search(rf"^\| {status.value} \|", CLI, re.MULTILINE)


@pytest.mark.parametrize(
    "group", [["ctl"], ["ctl", "model"], ["ctl", "jobs"], ["ctl", "weights"], ["ctl", "engines"]], ids=" ".join
)
def test_every_command_and_option_is_described(group: list[str]) -> None:
    listed = llmgw(*group, "--help").stdout.partition("Commands:")[2]
    commands = re.findall(r"^  ([a-z]+) ", listed, re.MULTILINE)
    assert commands
    for command in commands:
        if command in ("model", "jobs", "weights", "engines"):
            continue
        described = f"`{' '.join([*group, command])}"
        assert described in CLI
        options = set(re.findall(r"(--[a-z-]+)", llmgw(*group, command, "--help").stdout)) - {"--help"}
        assert not {option for option in options if f"`{option}" not in CLI}
