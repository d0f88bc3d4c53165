"""Request heads: a strict grammar, the few headers the gateway reads, and the lines it forwards.

The head is read here rather than by llhttp because llhttp joins folded lines, takes the absolute form and does not
say where a message ended, all of which matter on the side that strangers write to. What does not match the grammar is
refused, so no two parsers can disagree about what passes. Replies are read by httptools.
"""

import re

from llmgwd.gateway.answers import RefusedError

_GRAMMAR = re.compile(
    rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}) ([!-\"$-~]++) HTTP/(\d)\.(\d)\r\n"
    rb"((?:[!#$%&'*+\-.^_`|~0-9A-Za-z]++:[\t\x20-\x7e\x80-\xff]*+\r\n)*+)\r\n"
)
# Splitting by this leaves the other lines whole: a match takes a line from its "\n" to its "\r". Names with underscores
# are matched to be dropped: engines behind WSGI or CGI would take content_length for the length.
_SPECIAL = re.compile(
    rb"\n(host|connection|content[\-_]length|transfer[\-_]encoding|content[\-_]type|authorization|expect"
    rb"|accept[\-_]encoding|keep[\-_]alive|te|trailer|upgrade|proxy[\-_][a-z0-9\-_]+|x[\-_]llmgw[\-_][a-z0-9\-_]+)"
    rb":([^\r]*)\r",
    re.IGNORECASE,
)
_FORWARDED_SPECIAL = frozenset((b"content-type", b"authorization"))
_GIVEN_ONCE = re.compile(rb"content-type|authorization|expect|x-llmgw-.*")
"""Of two such lines the gateway and an engine might each believe another."""
_AUTHORIZATION = re.compile(rb"^authorization:[^\n]*\n", re.IGNORECASE | re.MULTILINE)
_METHODS = frozenset((b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"))
_LENGTH_LINE = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*(?=\r\n)", re.IGNORECASE)
_REMEMBERED = 512
_REMEMBERED_BYTES = 4096


class RequestHead:
    """What heads that differ at most in their Content-Length say. Never changed once read.

    Header values are stripped; an absent header is empty.
    """

    __slots__ = (
        "arm",
        "authorization",
        "chunked",
        "content_type",
        "expects_continue",
        "keep_alive",
        "lines",
        "method",
        "minor",
        "model",
        "path",
        "query",
        "session",
        "target",
    )

    def __init__(self, method: bytes, target: bytes, minor: int) -> None:
        self.method = method
        self.target = target
        path, _, query = target.partition(b"?")
        self.path = path
        self.query = query
        self.minor = minor
        """Of the HTTP version: 0 or 1."""
        self.keep_alive = minor == 1
        self.chunked = False
        self.expects_continue = False
        self.lines = b""
        """The header lines to forward, each with its line end; Authorization is among them only when asked for."""
        self.authorization = b""
        self.content_type = b""
        self.session = b""
        self.arm = b""
        self.model = b""


class HeadParser:
    """Reads heads, and remembers what it read: one client's heads differ in little but their Content-Length."""

    __slots__ = ("_forwards_authorization", "_known")

    def __init__(self, *, forwards_authorization: bool) -> None:
        self._forwards_authorization = forwards_authorization
        self._known: dict[bytes, RequestHead] = {}

    def parse(self, head: bytes) -> tuple[RequestHead, int]:
        """What a head that ends in its empty line says, and the length of its body unless that is chunked.

        Raises RefusedError for anything that is not plain HTTP/1.0 or 1.1.
        """
        length = 0
        found = _LENGTH_LINE.search(head)
        rest = head
        if found is not None:
            # What is left is read without this line, and refused if it holds another length of any kind.
            length = int(found[1])
            rest = head[: found.start()] + head[found.end() :]
        known = self._known.get(rest)
        if known is None:
            known = self._remember(rest)
        if found is not None and known.chunked:
            raise _bad("Content-Length and Transfer-Encoding are both given")
        return known, length

    def _remember(self, rest: bytes) -> RequestHead:
        head = _parse(rest, forwards_authorization=self._forwards_authorization)
        if len(rest) <= _REMEMBERED_BYTES:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[rest] = head
        return head


def _parse(head: bytes, *, forwards_authorization: bool) -> RequestHead:
    """Reads a head whose one good Content-Length line, if any, has been taken out."""
    match = _GRAMMAR.fullmatch(head)
    if match is None:
        raise why_malformed(head)
    method, target, major, minor, _ = match.groups()
    if major != b"1" or minor not in (b"0", b"1"):
        raise _bad("this gateway speaks HTTP/1.0 and HTTP/1.1 only", status=505, code="http_version_not_supported")
    if method not in _METHODS:
        raise _bad(f"method {method.decode()} is not served here", status=405, code="method_not_allowed")
    if target[0] != 0x2F and not (target == b"*" and method == b"OPTIONS"):
        raise _bad("the request target must be a path that starts with /")
    result = RequestHead(method, target, int(minor))
    start = match.start(5) - 1
    pieces = _SPECIAL.split(head[start:-2])
    special = [
        (name.lower(), value.strip(b" \t"))
        for name, value in zip(pieces[1::3], pieces[2::3], strict=True)
        if b"_" not in name
    ]
    _refuse_repeated([name for name, _ in special])
    _read_special(result, special)
    lines = b"".join(pieces[0::3])[1:]
    for name, value in special:
        if name in _FORWARDED_SPECIAL and (forwards_authorization or name != b"authorization"):
            lines += b"%b: %b\r\n" % (name.title(), value)
    result.lines = lines
    _drop_nominated(result, special)
    return result


def _refuse_repeated(names: list[bytes]) -> None:
    if len(names) == len(set(names)):
        return
    for name in names:
        if names.count(name) > 1 and _GIVEN_ONCE.fullmatch(name) is not None:
            raise _bad(f"{name.decode().title()} is given more than once")


def _read_special(head: RequestHead, special: list[tuple[bytes, bytes]]) -> None:
    hosts = 0
    for name, value in special:
        if name == b"content-length":
            raise _bad("Content-Length is given more than once, or is not a plain decimal number")
        if name == b"host":
            hosts += 1
        elif name == b"content-type":
            head.content_type = value
        elif name == b"connection":
            _read_connection(head, value)
        elif name == b"authorization":
            head.authorization = value
        else:
            _read_rare(head, name, value)
    if hosts > 1 or (hosts == 0 and head.minor == 1):
        raise _bad("an HTTP/1.1 request has exactly one Host header")


def _read_connection(head: RequestHead, value: bytes) -> None:
    options = [option.strip(b" \t") for option in value.lower().split(b",")]
    if b"close" in options:
        head.keep_alive = False
    elif b"keep-alive" in options and head.minor == 0:
        head.keep_alive = True


def _read_rare(head: RequestHead, name: bytes, value: bytes) -> None:
    if name == b"transfer-encoding":
        # One coding, chunked, and nothing else: what an engine makes of any other has been a hole before.
        if head.chunked or value.lower() != b"chunked" or head.minor == 0:
            raise _bad("Transfer-Encoding may only be one chunked, in HTTP/1.1")
        head.chunked = True
    elif name == b"expect":
        if value.lower() != b"100-continue":
            raise _bad("only Expect: 100-continue is understood", status=417, code="expectation_failed")
        head.expects_continue = head.minor == 1
    elif name == b"x-llmgw-session":
        head.session = value
    elif name == b"x-llmgw-arm":
        head.arm = value
    elif name == b"x-llmgw-model":
        head.model = value


def _drop_nominated(head: RequestHead, special: list[tuple[bytes, bytes]]) -> None:
    """Takes out the lines that the Connection header declares to be for this hop only."""
    for name, value in special:
        if name != b"connection" or value.lower() in (b"keep-alive", b"close"):
            continue
        nominated = {option.strip(b" \t") for option in value.lower().split(b",")}
        kept = [
            line for line in head.lines.splitlines(keepends=True) if line.partition(b":")[0].lower() not in nominated
        ]
        head.lines = b"".join(kept)


def authorized(lines: bytes, authorization: bytes) -> bytes:
    """Header lines with this one for Authorization, in place of the client's if that is among them."""
    return _AUTHORIZATION.sub(b"", lines) + authorization


def why_malformed(head: bytes) -> RefusedError:
    """The most telling complaint about a head that does not match the grammar."""
    plain = head.replace(b"\r\n", b"")
    if b"\x00" in head:
        return _bad("the request head has a NUL byte")
    if b"\r" in plain or b"\n" in plain:
        return _bad("the request head has a bare CR or LF")
    lines = head.split(b"\r\n")
    if re.fullmatch(rb"\S+ \S+ HTTP/\d\.\d", lines[0]) is None:
        return _bad("the request line is not METHOD SP TARGET SP HTTP/1.x")
    if any(line[:1] in (b" ", b"\t") for line in lines[1:]):
        return _bad("a header line is folded onto the next")
    if any(re.match(rb"[^:]*[ \t]+:", line) for line in lines[1:]):
        return _bad("a header name is followed by whitespace")
    return _bad("a header line is not NAME: VALUE in plain characters")


def _bad(why: str, *, status: int = 400, code: str = "bad_request") -> RefusedError:
    return RefusedError(status, code, f"the request was not understood: {why}; send plain HTTP/1.1", closes=True)
