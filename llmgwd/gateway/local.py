"""What the gateway answers itself, without an engine: health, the list of models, preflights."""

from urllib.parse import unquote_to_bytes

import msgspec

from llmgwd.gateway.answers import RefusedError
from llmgwd.gateway.heads import RequestHead
from llmgwd.gateway.routing import find_model
from llmgwd.gateway.table import Table, describe

_ALLOW = b"Allow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS\r\n"
_PREFLIGHT = (
    b"Access-Control-Allow-Methods: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS\r\n"
    b"Access-Control-Allow-Headers: *, Authorization\r\n"
)


def local_reply(head: RequestHead, table: Table | None) -> tuple[int, bytes, bytes] | None:
    """Status, JSON body and header lines; None when the request is an engine's. Raises RefusedError."""
    path = head.path
    if head.method == b"OPTIONS":
        # It names no model, so no engine can be asked; engines allow any origin by default, and so does this.
        return 204, b"", _ALLOW + (_PREFLIGHT if b"access-control-request-method" in head.lines.lower() else b"")
    if path in (b"/health", b"/health/"):
        return _only_get(head, b'{"status":"ok"}')
    if path in (b"/v1/models", b"/models"):
        if table is None:
            find_model(table, "")
        assert table is not None
        return _only_get(head, table.listing)
    if path.startswith(b"/v1/models/"):
        name = unquote_to_bytes(path[len(b"/v1/models/") :]).decode("utf-8", "replace")
        find_model(table, name)
        return _only_get(head, msgspec.json.encode(describe(name)))
    return None


def _only_get(head: RequestHead, body: bytes) -> tuple[int, bytes, bytes]:
    if head.method not in (b"GET", b"HEAD"):
        raise RefusedError(
            405,
            "method_not_allowed",
            f"{head.path.decode('latin-1')} is read with GET, not {head.method.decode()}",
            headers=b"Allow: GET, HEAD\r\n",
        )
    return 200, body, b""
