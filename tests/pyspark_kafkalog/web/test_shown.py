"""Bytes as the page shows them, whatever they are."""

import json

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.web.shown import SHOWN_CHARACTERS, laid_out, show, visible

documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(documents, st.booleans())
def test_json_that_is_laid_out_is_the_same(document: object, is_ascii: bool) -> None:
    text = json.dumps(document, ensure_ascii=is_ascii)
    pretty = laid_out(text)
    if len(pretty) <= SHOWN_CHARACTERS:
        assert json.loads(pretty) == document


@given(
    st.binary(max_size=200)
    | st.text().map(str.encode)
    | documents.map(lambda d: json.dumps(d).encode())
)
def test_any_bytes_are_shown(data: bytes) -> None:
    shown = show(memoryview(data))
    assert shown.size_bytes == len(data)
    assert shown.kind in ("empty", "text", "json", "hex")
    assert visible(shown.text) == shown.text
    assert "\n" not in shown.preview
    if shown.kind == "hex":
        rows = "".join(line[10:57] for line in shown.text.splitlines())
        assert bytes.fromhex(rows) == data


@given(st.integers(SHOWN_CHARACTERS - 2, 5 * SHOWN_CHARACTERS))
def test_a_character_is_not_cut_in_two(size: int) -> None:
    shown = show(memoryview(("ü€😀" * size)[:size].encode()))
    assert shown.kind == "text"
    assert shown.is_cut == (size > SHOWN_CHARACTERS)
    assert set(shown.text) <= set("ü€😀")


def test_deep_json_is_text() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert show(memoryview(deep)).kind == "text"


def test_what_hides_text_is_shown_by_signs() -> None:
    assert visible("a\u202eb\u200bc\x00\x7f\r") == "a⟨U+202E⟩b⟨U+200B⟩c␀␡␍"
