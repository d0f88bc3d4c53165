from pathlib import Path

import pytest

from llmgwd.domain.errors import LlmgwError
from llmgwd.engines.key_file import read_key


def test_a_key_is_read_without_what_surrounds_it(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("  sk-123\n")
    assert read_key(str(tmp_path / "key")) == "sk-123"
    assert read_key(None) == ""


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"sk-1\nsk-2", b"sk 1", b"sk-1\r\nX-Other: y", "sk-é".encode(), b"\xff\xfe", b"k" * 5000],
    ids=["empty", "blank", "two lines", "a space", "a header", "no ascii", "no text", "too long"],
)
def test_what_is_no_key_is_refused_and_not_quoted(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(LlmgwError) as raised:
        read_key(str(path))
    assert str(path) in raised.value.message
    assert "sk" not in raised.value.message.replace(str(path), "")
