"""Sizes as people write them."""

from __future__ import annotations

import pytest

from trinitylake_core import InvalidInput
from trinitylake_core.sizes import parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1", 1),
        ("12B", 12),
        (" 64KiB ", 65_536),
        ("256 MiB", 256 << 20),
        ("1.5GiB", 3 << 29),
        ("2TiB", 2 << 40),
    ],
)
def test_a_text_means_bytes(text: str, size: int) -> None:
    assert size == parse_size(text)


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1e9", "256mb", "1,5GiB", "1GiB 2MiB", "\u0663MiB", "9" * 19])
def test_what_is_no_size_is_refused_with_how_to_write_one(text: str) -> None:
    with pytest.raises(InvalidInput, match="256MiB"):
        parse_size(text)


def test_a_size_beyond_every_file_is_refused() -> None:
    with pytest.raises(InvalidInput, match="too large"):
        parse_size("99999999PiB")
