"""Compressed text is unpacked whole, or refused: never more of it than fits into memory."""

from __future__ import annotations

import gzip
import resource

import pytest

from pipelines.sweep.listing import expand_gzip
from trinitylake_core.errors import InvalidInput


def test_all_members_are_unpacked() -> None:
    """As `gzip` and `pigz` write them, padded or not."""
    data = gzip.compress(b"one ") + gzip.compress(b"two") + b"\0" * 512
    assert b"one two" == expand_gzip(data, "f.gz")
    assert b"" == expand_gzip(gzip.compress(b""), "f.gz")


DAMAGED = {
    "garbage": b"garbage",
    "cut short": gzip.compress(b"whole")[:-5],
    "garbage behind": gzip.compress(b"one") + b"garbage",
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED.keys())
def test_what_is_damaged_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"f\.gz is not a valid gzip file, or is cut short"):
        expand_gzip(data, "f.gz")


def test_a_bomb_is_refused_before_it_is_in_memory() -> None:
    """Half a megabyte that would become half a gigabyte."""
    bomb = gzip.compress(bytes(512 << 20), 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidInput, match="more than 1 MiB"):
        expand_gzip(bomb, "f.gz", 1 << 20)
    assert 64 << 10 > resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


def test_the_bound_is_exact() -> None:
    assert b"abc" == expand_gzip(gzip.compress(b"abc"), "f.gz", 3)
    with pytest.raises(InvalidInput):
        expand_gzip(gzip.compress(b"abcd"), "f.gz", 3)
    with pytest.raises(InvalidInput):
        expand_gzip(gzip.compress(b"ab") + gzip.compress(b"cd"), "f.gz", 3)
