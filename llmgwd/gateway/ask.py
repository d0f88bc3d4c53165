"""What a request asks for: the model, the session, whether to stream; and the body as one replica must get it."""

import json
import re
from enum import Enum
from typing import Any
from urllib.parse import parse_qs

import msgspec

from llmgwd.gateway import splice
from llmgwd.gateway.answers import RefusedError
from llmgwd.gateway.heads import RequestHead
from llmgwd.gateway.json_reading import UNREADABLE
from llmgwd.protocol.link import AdapterRoute


class Kind(Enum):
    """Which API a path belongs to; it decides how a reply is read."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    EMBEDDINGS = "embeddings"
    OTHER = "other"


_KINDS = {
    prefix + path: kind
    for prefix in (b"", b"/v1")
    for path, kind in (
        (b"/chat/completions", Kind.CHAT),
        (b"/completions", Kind.COMPLETIONS),
        (b"/responses", Kind.RESPONSES),
        (b"/embeddings", Kind.EMBEDDINGS),
    )
}
COUNTED_STREAMS = frozenset((Kind.CHAT, Kind.COMPLETIONS))
_FORM_FIELD = re.compile(
    rb'Content-Disposition:[ \t]*form-data;[ \t]*name="?model"?[ \t]*\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]*)\r\n--',
    re.IGNORECASE,
)


_EMPTY = re.compile(rb"\s*\{\s*\}")


class _Body(msgspec.Struct):
    model: Any = None
    stream: Any = None
    stream_options: Any = None
    user: Any = None
    prompt_cache_key: Any = None
    response_format: msgspec.Raw = msgspec.Raw()
    text: msgspec.Raw = msgspec.Raw()


class _Format(msgspec.Struct):
    """What form an answer should have: of chat and completions, and (inside `format`) of responses."""

    type: Any = None
    format: Any = None


_decode_format = msgspec.json.Decoder(_Format).decode
_JSON_FORMATS = ("json_object", "json_schema")
_decode = msgspec.json.Decoder(_Body).decode


class Ask:
    """One request, understood. `model` is the name the client used."""

    __slots__ = (
        "_form_span",
        "_is_json",
        "_options",
        "asks_json",
        "body",
        "counts_added",
        "kind",
        "model",
        "session",
        "stream",
    )

    def __init__(self, head: RequestHead, body: bytes) -> None:
        """Raises RefusedError (400) when no model is named, or not as a string."""
        self.kind = _KINDS.get(head.path, Kind.OTHER) if head.method == b"POST" else Kind.OTHER
        self.body = body
        self.model = ""
        self.session = head.session
        self.stream = False
        self.asks_json = False
        """Whether the answer is to be JSON."""
        self.counts_added = False
        """Whether the body last made asks for usage that the client did not ask for."""
        self._is_json = False
        self._form_span: splice.Span | None = None
        self._options: Any = None
        if body:
            self._read_body(head)
        if not self.model:
            self.model = _named_outside(head)

    def body_for(self, served_as: AdapterRoute, counts_usage: bool) -> bytes:
        """The body with the replica's own name for the model or adapter, what else it takes to ask for that, and for a
        stream it may count, usage asked for.

        Raises RefusedError (400) when it cannot be edited.
        """
        self.counts_added = False
        edits: list[splice.Edit] = []
        try:
            if served_as.name and self.body:
                edits += self._ask_for_adapter(served_as)
            elif served_as.served_name != self.model:
                edits += self._rename(served_as.served_name)
            if counts_usage and self.stream and self.kind in COUNTED_STREAMS:
                edits += self._ask_for_usage()
        except splice.TooDeepError as error:
            raise RefusedError(
                400,
                "nested_too_deeply",
                f"the request body is nested over {splice.DEEPEST} levels deep; send a flatter one",
            ) from error
        return splice.apply(self.body, edits) if edits else self.body

    def _read_body(self, head: RequestHead) -> None:
        body = self.body
        if head.content_type[:19].lower() == b"multipart/form-data":
            found = _FORM_FIELD.search(body)
            if found is not None:
                self.model = found[1].decode("utf-8", "replace")
                self._form_span = found.span(1)
            return
        # Not by content type: curl -d sends JSON as a form, and engines take it.
        if body.lstrip(b" \t\r\n")[:1] != b"{":
            return
        try:
            fields = _decode(body)
        except UNREADABLE as error:
            raise RefusedError(
                400,
                "invalid_json",
                f"the request body cannot be read: {_why_unreadable(body, error)}; send one JSON object",
            ) from error
        self._is_json = True
        self._read_fields(fields)

    def _read_fields(self, fields: _Body) -> None:
        if fields.model is not None:
            if not isinstance(fields.model, str):
                raise RefusedError(400, "invalid_model", "model must be a string that names a model", param="model")
            self.model = fields.model
        self.stream = fields.stream is True
        self._options = fields.stream_options
        self.asks_json = _asks_json(fields.text if self.kind is Kind.RESPONSES else fields.response_format)
        if not self.session:
            for key in (fields.user, fields.prompt_cache_key):
                if isinstance(key, str) and key:
                    self.session = key.encode("utf-8", "surrogatepass")
                    break

    def _rename(self, served_name: str) -> list[splice.Edit]:
        if self._form_span is not None:
            return [(*self._form_span, served_name.encode())]
        if not self._is_json:
            return []
        value = msgspec.json.encode(served_name)
        return [(*span, value) for span in splice.value_spans(self.body, b"model")]

    def _ask_for_adapter(self, served_as: AdapterRoute) -> list[splice.Edit]:
        """Unlike a model, which an engine may serve without being told its name, an adapter has to be named."""
        if self._form_span is not None and not served_as.fields:
            return self._rename(served_as.served_name)
        if not self._is_json:
            raise RefusedError(
                400,
                "adapter_needs_json",
                f"{self.model!r} is an adapter, which its engine can be asked for in a JSON body only; send JSON",
                param="model",
            )
        fields = [(name.encode(), value.encode()) for name, value in served_as.fields]
        return self._set_members([(b"model", msgspec.json.encode(served_as.served_name)), *fields])

    def _ask_for_usage(self) -> list[splice.Edit]:
        options = self._options
        if options is None or options == {}:
            edits = self._set_members([(b"stream_options", b'{"include_usage":true}')])
        elif isinstance(options, dict) and "include_usage" not in options:
            ((start, _),) = splice.value_spans(self.body, b"stream_options")[-1:]
            edits = [(start + 1, start + 1, b'"include_usage":true,')]
        else:
            return []
        self.counts_added = True
        return edits

    def _set_members(self, members: list[tuple[bytes, bytes]]) -> list[splice.Edit]:
        edits: list[splice.Edit] = []
        new: list[bytes] = []
        for name, value in members:
            # Where the name's text is not in the body there is no such member, unless it is spelt with an escape.
            spans = splice.value_spans(self.body, name) if name in self.body or b"\\u00" in self.body else []
            edits += [(*span, value) for span in spans]
            if not spans:
                new.append(b'"%b":%b' % (name, value))
        if new:
            start = self.body.index(b"{") + 1
            is_empty = _EMPTY.match(self.body) is not None
            edits.append((start, start, b",".join(new) + (b"" if is_empty else b",")))
        return edits


def _why_unreadable(body: bytes, error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    try:
        json.loads(body)
    except ValueError:
        return f"it is not JSON ({error})"
    except RecursionError:
        return "it is nested too deeply"
    return "it has half a surrogate pair, or a number that JSON has not, such as NaN"


def _asks_json(wanted: msgspec.Raw) -> bool:
    if len(bytes(wanted)) < 3:
        return False
    try:
        found = _decode_format(wanted)
    except UNREADABLE:
        return False
    kind = found.format.get("type") if isinstance(found.format, dict) else found.type
    return kind in _JSON_FORMATS


def _named_outside(head: RequestHead) -> str:
    """The model a request without one in its body names by header or query."""
    if head.model:
        return head.model.decode("utf-8", "replace")
    if head.query:
        named = parse_qs(head.query.decode("ascii", "replace")).get("model")
        if named:
            return named[0]
    raise RefusedError(
        400,
        "model_required",
        "the request names no model; set model in the JSON body or form, the x-llmgw-model header, or ?model=NAME",
        param="model",
    )
