"""The hub token: where it comes from, and never what it is."""

import os
import re
from pathlib import Path

from huggingface_hub import get_token

from llmgwd.domain.errors import LlmgwError

SENDABLE = re.compile(r"[!-~]+")
"""Anything else makes the client fail with an error that quotes the whole header, and so the token."""


class Token:
    """A token and, for people, where it came from. Not a plain string, so that no log or message shows it."""

    def __init__(self, value: str, source: str) -> None:
        self._value = value
        self.source = source

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return f"<token from {self.source}>"


class TokenSource:
    """Reads the token anew at each use, so that a rotated one is picked up.

    The first that applies: token_file (`hub.token_file`), the environment or the client's own login.
    """

    def __init__(self, token_file: Path | None = None) -> None:
        self._token_file = token_file

    def read(self) -> Token | None:
        """Raises LlmgwError `token_unreadable` for a token file that has no token, and for what cannot be one."""
        if self._token_file is not None:
            return Token(self._read_file(self._token_file), str(self._token_file))
        value = get_token()
        if value is None:
            return None
        named = (os.environ.get("HF_TOKEN", ""), os.environ.get("HUGGING_FACE_HUB_TOKEN", ""))
        is_from_environment = value in [each.strip() for each in named]
        source = "the environment" if is_from_environment else "the login of huggingface_hub"
        if not SENDABLE.fullmatch(value):
            hint = "set HF_TOKEN to the token alone, or name a file with it as hub.token_file"
            raise LlmgwError("token_unreadable", f"the hub token from {source} is not plain text", hint=hint)
        return Token(value, source)

    @staticmethod
    def _read_file(path: Path) -> str:
        hint = "put the token alone into the file that hub.token_file names, readable for llmgwd only"
        try:
            value = path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not plain text"
            raise LlmgwError(
                "token_unreadable", f"cannot read the hub token from {path}: {reason}", hint=hint
            ) from None
        if len(value.split()) != 1:
            raise LlmgwError("token_unreadable", f"{path} holds no token", hint=hint)
        if not SENDABLE.fullmatch(value):
            message = f"cannot read the hub token from {path}: it is not plain text, perhaps UTF-16"
            raise LlmgwError("token_unreadable", message, hint=hint)
        return value
