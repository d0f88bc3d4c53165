from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from llmgwd.gateway.chunked import ChunkedBody

sizes = st.sampled_from(["%x", "%X", "000%x", "%x;a=b", '%x ; q="z"'])


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=40), sizes), max_size=8),
    st.lists(st.integers(0, 600), max_size=20),
    st.sampled_from([b"", b"X-Trailer: 1\r\nY: 2\r\n"]),
)
def test_any_cut_gives_the_same_body_and_leaves_what_follows(
    chunks: list[tuple[bytes, str]], cuts: list[int], trailer: bytes
) -> None:
    framed = b"".join((size % len(data)).encode() + b"\r\n" + data + b"\r\n" for data, size in chunks)
    framed += b"0\r\n" + trailer + b"\r\n"
    edges = sorted({0, len(framed), *(cut % (len(framed) + 1) for cut in cuts)})
    reader = ChunkedBody(10_000)
    buffer = bytearray()
    result = None
    for start, end in pairwise(edges):
        buffer += framed[start:end]
        if end == len(framed):
            buffer += b"GET /next"
        result = reader.take(buffer)
        assert (result is None) == (end < len(framed))
    assert result == b"".join(data for data, _ in chunks)
    assert buffer == b"GET /next"
