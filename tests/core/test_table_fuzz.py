"""Random files of tables, sound and damaged: what is read is exactly what a strict reader finds, or nothing.

The sound ones come from two writers that share nothing with the reader. Of a damaged one a reader can find something
else than was written, for a path with one bit flipped is a path; but never what another strict reader does not find.
"""

from __future__ import annotations

import gzip
import json
import random
import resource
from typing import Any, Final

import pytest

from tests.support.avro_by_hand import NotAvro
from tests.support.mutated_files import damaged, damaged_metadata, strict_answer, strict_named
from tests.support.table_files import PARTITIONS, Written, any_file, any_manifest, any_metadata
from trinitylake_core.iceberg.reading.references import UnreadableTable, files_in, listed_in, references
from trinitylake_core.tables import full_uri

_DAMAGED: Final = 7
"""Damaged copies of each sound file; both count as cases."""
_CASES: Final = 2_000
_MANY_CASES: Final = 100_000
_MEMORY_KIB: Final = 256 << 10


def read(kind: str, data: bytes) -> list[tuple[Any, ...]]:
    """Return what the reader finds in a manifest or a manifest list."""
    if kind == "manifest":
        return [tuple(each) for each in files_in(data, "file:///x.avro")]
    return [(each.uri, each.size) for each in listed_in(data, "file:///x.avro")]


def with_uris(answer: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return an answer with its paths in one spelling."""
    return [(full_uri(path), *rest) for path, *rest in answer]


def _is_read_rightly(written: Written) -> None:
    assert with_uris(written.answer) == read(written.kind, written.data)
    assert written.answer == strict_answer(written.kind, written.data)


def _is_read_strictly_or_not_at_all(kind: str, data: bytes) -> None:
    try:
        found = read(kind, data)
    except UnreadableTable as error:
        _tells_no_content(error)
        return
    try:
        assert with_uris(strict_answer(kind, data)) == found
    except NotAvro as error:
        pytest.fail(f"it is not Avro ({error}), and was read")


def _tells_no_content(error: UnreadableTable) -> None:
    assert error.__cause__ is None
    assert str(error).isascii()
    assert "tables/sales" not in str(error)


def _fuzz_avro(cases: int, seed: int) -> None:
    for number in range(cases // (1 + _DAMAGED)):
        chance = random.Random(seed + number)
        written = any_file(chance)
        _is_read_rightly(written)
        for _ in range(_DAMAGED):
            _is_read_strictly_or_not_at_all(written.kind, damaged(chance, written))


def _names(data: bytes) -> tuple[set[str], set[str]]:
    found = references(data, "file:///x.metadata.json")
    return set(found.directories), {*found.manifest_lists, *found.manifests, *found.statistics}


def _fuzz_metadata(cases: int, seed: int) -> None:
    for number in range(cases // (1 + _DAMAGED)):
        chance = random.Random(seed + number)
        document, named = any_metadata(chance)
        sound = json.dumps(document, ensure_ascii=chance.random() < 0.5).encode()
        directories = {full_uri(each).rstrip("/") for each in named.directories}
        assert (directories, {full_uri(each) for each in named.files}) == _names(sound)
        assert _names(sound) == _names(gzip.compress(sound))
        for _ in range(_DAMAGED):
            data = damaged_metadata(chance, document)
            try:
                found = _names(data if chance.random() < 0.5 else gzip.compress(data))
            except UnreadableTable as error:
                _tells_no_content(error)
                continue
            try:
                strict = strict_named(data)
            except NotAvro as error:
                pytest.fail(f"it is no metadata ({error}), and was read")
            assert {full_uri(each) for each in strict.directories} == found[0]
            assert {full_uri(each) for each in strict.files} == found[1]


def test_damaged_files_are_read_as_a_strict_reader_reads_them_or_not_at_all() -> None:
    _fuzz_avro(_CASES // 2, 0)
    _fuzz_metadata(_CASES // 2, 0)


@pytest.mark.slow
def test_a_hundred_thousand_damaged_files_are_read_strictly_or_not_at_all_within_bounded_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _fuzz_avro(_MANY_CASES * 4 // 5, 1_000_000)
    _fuzz_metadata(_MANY_CASES // 5, 1_000_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < _MEMORY_KIB


@pytest.mark.parametrize("kind", PARTITIONS)
@pytest.mark.parametrize(("rows", "columns"), [(1, 0), (2, 7), (100, 3)])
def test_each_type_may_partition_a_table(kind: str, rows: int, columns: int) -> None:
    for seed in range(4):
        chance = random.Random(seed)
        _is_read_rightly(any_manifest(chance, chance.choice([1, 2, 3]), [kind, "long", kind], rows, columns))


@pytest.mark.slow
@pytest.mark.parametrize("kind", PARTITIONS)
@pytest.mark.parametrize(("rows", "columns"), [(1, 0), (1, 40), (10, 40), (333, 1), (1000, 0), (1000, 1)])
def test_each_type_may_partition_a_table_with_up_to_a_thousand_files_in_a_block(
    kind: str, rows: int, columns: int
) -> None:
    for seed in range(2):
        _is_read_rightly(any_manifest(random.Random(seed), seed + 2, [kind], rows, columns))
