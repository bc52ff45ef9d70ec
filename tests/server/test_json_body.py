"""Large bodies are parsed in parts, with the same result as in one piece."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mambad.server import json_body
from mambad.server.errors import ApiError
from mambad.server.json_body import MAX_VALUES, parse_object

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
)
text = st.text('ab"\\[]{},: é😀', max_size=12)
values = st.recursive(
    scalars | text, lambda inner: st.lists(inner) | st.dictionaries(text, inner), max_leaves=30
)


@pytest.fixture
def small_limits(monkeypatch):
    monkeypatch.setattr(json_body, "LARGE_BYTES", 0)
    monkeypatch.setattr(json_body, "SLICE_BYTES", 3)


@given(st.dictionaries(text, values, max_size=5), st.sampled_from([None, 1]))
def test_parsing_in_parts_equals_parsing_in_one_piece(content, indent):
    raw = json.dumps(content, indent=indent, ensure_ascii=False).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_body, "LARGE_BYTES", 0)
        patch.setattr(json_body, "SLICE_BYTES", 3)
        assert parse_object(raw) == orjson.loads(raw)


@given(st.lists(st.integers(0, 10**6)), st.integers(1, 9), st.sampled_from([",", ", ", " ,\n"]))
def test_a_list_of_numbers_is_the_same_however_it_is_sliced(numbers, slice_bytes, comma):
    raw = f'{{"prompt": [{comma.join(map(str, numbers))}]}}'.encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_body, "LARGE_BYTES", 0)
        patch.setattr(json_body, "SLICE_BYTES", slice_bytes)
        assert parse_object(raw) == {"prompt": numbers}


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize(
    "raw",
    [
        b'{"a": [1, 2, 3,]}',
        b'{"a": [1 2 3 4]}',
        b'{"a": ["\xff----"]}',
        b'{"a": "\\ud800----"}',
        b'{"a": NaN}',
        b'{"a": [1e400, 2]}',
        b"[1, 2, 3]",
        b'"aaaaaaa"',
        b'{"a": 1} {}',
        b'{"\xff": 1}',
        b'{"a": [1, 2',
        b"{}}",
        b'{"a": ' + b"[" * 2000 + b"]" * 2000 + b"}",
        b'{"a": [' + b"[" * 1100 + b"]" * 1100 + b"]}",
    ],
)
def test_a_large_body_that_is_no_json_object_is_refused_like_a_small_one(raw):
    with pytest.raises(ApiError) as caught:
        parse_object(raw)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


@pytest.mark.parametrize("unit", [b"[5]", b"{}", b'"a"', b'{"a":[]}', b'["\\""]', b'"\\\\"'])
def test_a_large_field_of_far_too_many_values_is_refused_by_name(unit):
    with pytest.raises(ApiError) as caught:
        parse_object(b'{"prompt": [' + b",".join([unit] * (2 * MAX_VALUES)) + b"]}")
    assert (caught.value.status, caught.value.param) == (400, "prompt")


def test_brackets_and_quotes_within_texts_are_no_values():
    content = {"prompt": ['say "[{" and \\" ' * 50_000, "[" * 300_000]}
    assert parse_object(json.dumps(content).encode()) == content


@pytest.mark.parametrize("padding", ["", "x" * 300_000])
def test_a_body_of_too_many_fields_is_refused(padding):
    content = {f"field{i}": 1 for i in range(257)} | {"p": padding}
    with pytest.raises(ApiError, match="258 fields"):
        parse_object(json.dumps(content).encode())
