import pytest

from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.urls import Place, place_of


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://gpu-7:8000", Place("gpu-7", 8000)),
        ("http://gpu-7.example.org", Place("gpu-7.example.org", 80)),
        ("https://api.example.org", Place("api.example.org", 443, tls=True)),
        ("https://api.example.org:8443/v1/", Place("api.example.org", 8443, tls=True)),
        ("HTTP://127.0.0.1:1/v1", Place("127.0.0.1", 1)),
        ("http://[::1]:8000", Place("::1", 8000)),
    ],
)
def test_a_url_names_a_place(url: str, place: Place) -> None:
    assert place_of(url) == place
    assert place_of(place.url) == place


@pytest.mark.parametrize(
    "url",
    [
        *("", "gpu-7:8000", "ftp://x", "http://", "http://x:99999", "http://x:0", "http://x:y", "http://a b"),
        *("http://x/api", "http://x/v1/chat/completions", "http://x?key=1", "http://x#f", "http://x\r\nHost: y"),
        *("http://[::1", "http://ex%41mple.org", "file:///etc/passwd"),
    ],
)
def test_what_names_none_is_refused(url: str) -> None:
    with pytest.raises(LlmgwError, match="cannot be used"):
        place_of(url)


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(LlmgwError) as raised:
        place_of("http://me:secret@x")
    assert "secret" not in raised.value.message + raised.value.hint
