import json

from hypothesis import given
from hypothesis import strategies as st

from llmgwd.gateway.splice import apply, value_spans

keys = st.one_of(st.sampled_from(["model", "response", 'mo"del', "\\model", "x"]), st.text(max_size=8))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=12), st.sampled_from(['"model":', "{[", "\\"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=12,
)
layouts = st.sampled_from([{"separators": (",", ":")}, {"indent": 1}, {"ensure_ascii": False}, {}])


@given(st.dictionaries(keys, values, max_size=6), layouts)
def test_the_span_is_the_value_and_nothing_else_changes(value: dict[str, object], layout: dict[str, object]) -> None:
    text = json.dumps(value, **layout).encode()  # type: ignore[arg-type]
    spans = value_spans(text, b"model")
    assert len(spans) == ("model" in value)
    for start, end in spans:
        assert json.loads(text[start:end]) == value["model"]
    replaced = json.loads(apply(text, [(*span, b'"new"') for span in spans]))
    assert replaced == (value | {"model": "new"} if "model" in value else value)


def test_a_key_spelled_with_escapes_and_a_repeated_key_are_found() -> None:
    text = b'{"\\u006dodel": "a", "model" : "b" }'
    assert [text[start:end] for start, end in value_spans(text, b"model")] == [b'"a"', b'"b"']
