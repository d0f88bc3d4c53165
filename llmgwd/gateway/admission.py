"""The gateway's own keys: who may ask at all."""

from hashlib import sha256

from llmgwd.gateway.answers import RefusedError
from llmgwd.gateway.heads import RequestHead
from llmgwd.gateway.table import Table


def check_key(table: Table | None, head: RequestHead) -> None:
    """Raises RefusedError (401) unless the request's bearer key is one of the table's, where it has any.

    The health check and OPTIONS need none: browsers send their preflight without.
    """
    if table is None or table.key_hashes is None or head.path == b"/health" or head.method == b"OPTIONS":
        return
    scheme, _, key = head.authorization.partition(b" ")
    if scheme.lower() == b"bearer" and table.admits(sha256(key.strip()).digest()):
        return
    raise RefusedError(
        401,
        "invalid_api_key",
        "no valid API key; send Authorization: Bearer KEY with a key that the operator gave you",
        headers=b"WWW-Authenticate: Bearer\r\n",
        closes=True,
    )
