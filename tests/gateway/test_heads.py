"""What of a request's head is read, forwarded and dropped."""

import pytest

from llmgwd.gateway.answers import RefusedError
from llmgwd.gateway.heads import HeadParser, RequestHead, authorized


def parse(*lines: str) -> RequestHead:
    head = "\r\n".join(["POST /v1/chat/completions HTTP/1.1", "Host: x", *lines, "", ""])
    return HeadParser(forwards_authorization=True).parse(head.encode())[0]


@pytest.mark.parametrize(
    "name",
    [
        "Content_Length",
        "content_length",
        "Transfer_Encoding",
        "Content_Type",
        "Accept_Encoding",
        "Keep_Alive",
        "Proxy_Authorization",
        "Proxy-Authorization_",
        "x_llmgw_arm",
        "x-llmgw_arm",
        "X_llmgw-arm",
    ],
)
def test_a_name_that_an_engine_could_take_for_one_of_the_gateways_is_dropped(name: str) -> None:
    head = parse(f"{name}: canary", "X-Mine: 1")
    assert head.lines == b"X-Mine: 1\r\n"
    assert (head.arm, head.chunked, head.content_type) == (b"", False, b"")


def test_other_names_with_underscores_pass() -> None:
    assert parse("X_Mine: 1", "x_request_id: 2").lines == b"X_Mine: 1\r\nx_request_id: 2\r\n"


@pytest.mark.parametrize("name", ["Content-Type", "Authorization", "Expect", "x-llmgw-arm", "x-llmgw-model"])
def test_a_line_that_is_given_once_is_refused_twice(name: str) -> None:
    with pytest.raises(RefusedError, match="given more than once"):
        parse(f"{name}: 100-continue", f"{name.upper()}: 100-continue")


def test_lines_that_may_be_given_twice_are_not() -> None:
    head = parse("Connection: keep-alive", "Connection: x-hop", "TE: a", "TE: b", "X-Hop: 1", "X-Mine: 1", "X-Mine: 2")
    assert head.lines == b"X-Mine: 1\r\nX-Mine: 2\r\n"


@pytest.mark.parametrize("lines", [(), ("AUTHORIZATION: Bearer theirs",)], ids=["none of the client's", "the client's"])
def test_an_engine_with_a_key_of_its_own_is_given_that_alone(lines: tuple[str, ...]) -> None:
    head = parse("X-Mine: authorization: 1", *lines, "X-More: 2")
    passed = authorized(head.lines, b"Authorization: Bearer ours\r\n")
    assert sorted(passed.splitlines()) == [
        b"Authorization: Bearer ours",
        b"X-Mine: authorization: 1",
        b"X-More: 2",
    ]
