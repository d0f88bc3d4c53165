"""The API key of an external engine: read from its file when it is needed, and kept nowhere else."""

from pathlib import Path

from llmgwd.domain.errors import refused

LONGEST = 4096


def read_key(path: str | None) -> str:
    """The key alone; empty without a file. Raises LlmgwError, which never quotes what is in the file."""
    if path is None:
        return ""
    try:
        with Path(path).open() as file:
            key = file.read(LONGEST + 1).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise refused("bad_key_file", f"the key file {path} cannot be read: {why}") from error
    # It becomes a header's value, where a line break would be another header.
    if not key or len(key) > LONGEST or not key.isascii() or not key.isprintable() or " " in key:
        raise refused("bad_key_file", f"the key file {path} does not hold one key: expected one line of plain text")
    return key
