"""Object keys: names go in and come out, in the order of UTF-8 bytes, and nothing else is a key."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trinitylake_core import InvalidInput, InvalidName
from trinitylake_core.keys import (
    EVERYTHING,
    KeyCodec,
    ObjectName,
    encode_schema_id,
    is_object_key,
)

SIZE = 12
CODEC = KeyCodec(SIZE, SIZE, SIZE)
NAMES = st.text(
    st.characters(codec="utf-8", min_codepoint=0x21, exclude_characters="\x7f"), min_size=1, max_size=SIZE
).filter(lambda name: len(name.encode()) <= SIZE)
OBJECTS = st.builds(ObjectName, st.just("namespace"), NAMES) | st.builds(
    ObjectName, st.sampled_from(["table", "view"]), NAMES, NAMES
)
FORBIDDEN = [*map(chr, range(0x21)), "\x7f"]


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "A==="), (1, "B==="), (2, "C==="), (3, "D==="), (4, "E==="), (25, "Z==="), (26, "a==="), (51, "z==="),
     (52, "0==="), (61, "9==="), (62, "+==="), (63, "/==="), (64, "BA=="), (4095, "//=="), (64**4 - 1, "////")],
)  # fmt: skip
def test_a_schema_id_is_base64_digits_padded_on_the_right(number: int, text: str) -> None:
    assert text == encode_schema_id(number)


@pytest.mark.parametrize("number", [-1, 64**4])
def test_a_schema_id_that_does_not_fit_is_refused(number: int) -> None:
    with pytest.raises(InvalidInput):
        encode_schema_id(number)


def test_the_example_of_the_documentation_holds() -> None:
    codec = KeyCodec(8, 8, 8)
    assert "B===ns1     " == codec.namespace("ns1")
    assert "C===ns1     t1      " == codec.table("ns1", "t1")
    assert "D===ns1     v1      " == codec.view("ns1", "v1")


@given(OBJECTS)
def test_a_name_comes_back_from_its_key(name: ObjectName) -> None:
    key = CODEC.encode(name)
    assert name == CODEC.decode(key)
    assert (name.kind, name.namespace, name.name) == CODEC.split(key)
    assert is_object_key(key)
    assert 4 + SIZE * (1 if name.name is None else 2) == len(key.encode())
    assert key in CODEC.range(name.kind)
    assert key in CODEC.range(name.kind, name.namespace)
    assert key in EVERYTHING


@given(OBJECTS, OBJECTS)
def test_keys_are_in_the_order_of_their_utf8_bytes(one: ObjectName, two: ObjectName) -> None:
    a, b = CODEC.encode(one), CODEC.encode(two)
    assert (a < b) == (a.encode() < b.encode())
    assert (a == b) == (one == two)


@given(OBJECTS, st.sampled_from(["table", "view"]), NAMES)
def test_a_range_holds_exactly_what_is_in_a_namespace(name: ObjectName, kind: str, namespace: str) -> None:
    inside = (name.kind, name.namespace) == (kind, namespace)
    assert inside == (CODEC.encode(name) in CODEC.range(kind, namespace))
    assert (name.kind == kind) == (CODEC.encode(name) in CODEC.range(kind))


@pytest.mark.parametrize(
    "key",
    [
        "",
        "B===",
        "B===" + " " * 12,
        "B===ns",
        "B===ns" + " " * 9,
        "B===ns" + " " * 11,
        "B===n s" + " " * 9,
        "B=== ns" + " " * 9,
        " B===ns" + " " * 10,
        "A===ns" + " " * 10,
        "E===ns" + " " * 10,
        "C===ns" + " " * 22,
        "C===ns" + " " * 10,
        "C===" + " " * 12 + "t" + " " * 11,
        "C===ns" + " " * 10 + "t\n" + " " * 10,
        "C===" + "a" * 11 + "é" + "t" + " " * 10,
        "lakehouse_def",
        "\U0010ffff",
    ],
)
def test_a_key_that_is_not_well_formed_is_refused(key: str) -> None:
    with pytest.raises(InvalidName):
        CODEC.decode(key)


PIECES = ["B===", "C===", "D===", "E===", "ns", "t", "é", " ", "\n", "\x7f", "a" * SIZE, " " * 10, " " * SIZE, "x" * 9]


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join) | OBJECTS.map(CODEC.encode))
def test_the_fast_way_to_read_a_key_says_what_the_slow_one_does(key: str) -> None:
    try:
        slow = CODEC._split_proved(key)
    except InvalidName:
        assert not CODEC.well_formed([key])
        with pytest.raises(InvalidName):
            CODEC.parts(key)
        return
    assert slow == CODEC.parts(key) == CODEC.split(key)
    assert CODEC.well_formed([key]) == key.isascii()


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_decoding_gives_a_name_with_that_key_or_refuses(key: str) -> None:
    try:
        name = CODEC.decode(key)
    except InvalidName:
        return
    assert key == CODEC.encode(name)


def test_keys_of_the_java_sdk_hold(vectors: dict[str, Any]) -> None:
    """By the SDK's rules all of them; by ours those whose names ours allow and whose sizes agree in bytes."""
    ours = 0
    for vector in vectors["object_keys"]:
        sizes = vector["ns_max"], vector["table_max"], vector["view_max"]
        kind = vector["fn"].removesuffix("Key")
        names = [vector[each] for each in ("namespace", "name") if each in vector]
        sdk, own = KeyCodec(*sizes, utf16=True), KeyCodec(*sizes)
        assert vector["result"] == sdk.encode(ObjectName(kind, *names))
        found = sdk.decode(vector["result"])
        assert vector["name_back"] == (found.namespace if found.name is None else found.name)
        if vector["key_bytes_utf8"] == vector["key_chars_utf16"] and not any(c in n for c in FORBIDDEN for n in names):
            assert vector["result"] == own.encode(ObjectName(kind, *names))
            ours += 1
    assert ours > 20


@given(st.text("ab", min_size=1, max_size=SIZE), st.lists(NAMES, max_size=5))
def test_names_in_keys_of_one_namespace_are_what_a_split_says(namespace: str, names: list[str]) -> None:
    assert names == CODEC.names_in([CODEC.table(namespace, name) for name in names])
