"""Texts of a node, searched by their bytes."""

from __future__ import annotations

from bisect import bisect_right

from hypothesis import given
from hypothesis import strategies as st

from trinitylake_core.tree.noderows import Texts, text_array

_TEXTS = st.text("ab\u00e9\U0001f600 \x01", max_size=4)


@given(st.lists(_TEXTS, unique=True), _TEXTS, st.integers(0, 3))
def test_texts_of_any_lengths_are_found_where_python_finds_them(texts: list[str], wanted: str, skipped: int) -> None:
    """Of one length or of many, with a longer or shorter text searched for, also in a slice of a column."""
    ordered = sorted(texts)
    found = Texts(text_array(ordered).slice(min(skipped, len(ordered)))).up_to(wanted.encode())
    assert found == bisect_right(ordered[skipped:], wanted)


@given(st.sets(st.text("ab\u00e9", min_size=3, max_size=3)), st.text("ab\u00e9\0", max_size=5))
def test_texts_of_one_number_of_characters_are_found(texts: set[str], wanted: str) -> None:
    """Many of them have one length in bytes, too; the text searched for may hold a NUL, which no key does."""
    ordered = sorted(texts)
    assert Texts(text_array(ordered)).up_to(wanted.encode()) == bisect_right(ordered, wanted)
