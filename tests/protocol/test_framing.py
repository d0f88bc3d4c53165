import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgwd.protocol.framing import MAX_FRAME_BYTES, FrameError, FrameReader, frame


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(1, 7))
def test_frames_come_out_whole_whatever_the_pieces(payloads: list[bytes], size: int) -> None:
    stream = b"".join(frame(payload) for payload in payloads)
    reader = FrameReader()
    found = [each for start in range(0, len(stream), size) for each in reader.feed(stream[start : start + size])]
    assert found == payloads


def test_a_frame_that_announces_too_much_is_refused_before_its_payload() -> None:
    with pytest.raises(FrameError, match="over the limit of 10"):
        FrameReader(limit_bytes=10).feed(b"\x00\x00\x00\x0b")


def test_a_message_that_is_too_long_is_not_framed() -> None:
    with pytest.raises(FrameError):
        frame(bytes(MAX_FRAME_BYTES + 1))
