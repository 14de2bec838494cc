"""The decision about a rewrite: exactly the cases of its rules, and the same in `tables health`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from pipelines import tables_health
from pipelines.tables.compact import decision
from pipelines.tables.compact.decision import GroupRules, decide_group, decide_table, take_within
from tests.support.icebergs import new_iceberg, rows, with_table
from trinitylake_core.errors import InvalidInput
from trinitylake_core.iceberg.file_groups import FileGroup, FileGroups, GroupKey
from trinitylake_core.iceberg.references import DescribedFile

MIB: Final = 1 << 20
TARGET: Final = 512 * MIB
NOW: Final = 1_000_000_000_000


def group_of(small: int, each: int = MIB, *, large: int = 0) -> FileGroup:
    """Return a group of small files of some bytes each, and of large ones of the target size."""
    return FileGroup(
        files=small + large,
        bytes=small * each + large * TARGET,
        rows=1000 * (small + large),
        small_files=small,
        small_bytes=small * each,
    )


def test_deleted_rows() -> None:
    """Where enough rows are deleted all files are rewritten, and the delete files count as files that go."""
    one = replace(group_of(0, large=1), delete_files=1, deletes=99)
    assert decision.FEW == decide_group(one, TARGET, GroupRules(), NOW).reason
    enough = replace(one, deletes=100)
    found = decide_group(enough, TARGET, GroupRules(), NOW)
    assert (True, decision.DELETED) == (found.wanted, found.reason)
    assert (1, 1, 1, TARGET) == (found.files, found.after, found.gain, found.bytes)
    many = replace(group_of(0, large=8), delete_files=1, deletes=4000)
    assert decision.SAME == decide_group(many, TARGET, GroupRules(), NOW).reason


@pytest.mark.parametrize(("size", "rows", "large"), [(180, 2000, 0), (181, 2000, 1), (181, 1800, 0), (1000, 10_000, 1)])
def test_a_file_is_large_above_a_share_of_the_target_if_it_has_the_rows(size: int, rows: int, large: int) -> None:
    """One of a few rows, each of which is large, would be rewritten every night."""
    groups = FileGroups(100, {}, with_paths=True)
    groups.add(0, DescribedFile("file:///x", size, 0, rows, b"", None))
    [found] = groups.finish().values()
    assert (large, large * size, large) == (found.large_files, found.large_bytes, len(found.large_paths))


def test_the_best_gain_for_its_cost_comes_first_and_a_budget_ends_it() -> None:
    groups = {
        GroupKey(0, b"heavy"): group_of(20, 100 * MIB),
        GroupKey(0, b"light"): group_of(20, MIB),
        GroupKey(0, b"middle"): group_of(20, 10 * MIB),
    }
    found = decide_table(groups, TARGET, GroupRules(), NOW)
    assert [b"light", b"middle", b"heavy"] == [key.partition for key, _ in found.groups]
    decisions = [each for _, each in found.groups]
    assert [0, 1, 2] == list(take_within(decisions, None))
    assert [0, 1] == list(take_within(decisions, 300 * MIB))
    assert [1, 2] == list(take_within([decisions[2], decisions[0], decisions[1]], 220 * MIB))
    assert [] == list(take_within(decisions, 0))


@pytest.mark.parametrize(
    "wrong",
    [{"min_files": 1}, {"deletes": 0}, {"deletes": 1.5}, {"share": 0}, {"target": 1}, {"settled_seconds": -1}],
)
def test_rules_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        GroupRules(**wrong)  # type: ignore[arg-type]


def test_health_counts_by_partition_and_shows_what_a_rewrite_would_do(tmp_path: Path) -> None:
    catalog = new_iceberg(tmp_path)
    table = with_table(catalog, "sales.days")
    table.update_spec().add_identity("id").commit()
    table.append(rows(*range(10)))
    found = tables_health.run(catalog.lakehouse).tables[0]
    assert (10, 0, 0) == (found.data_files, found.small_files, found.rewrite_files)
    for _ in range(4):
        table.append(rows(3))
    found = tables_health.run(catalog.lakehouse).tables[0]
    assert (14, 5, 5, 1) == (found.data_files, found.small_files, found.rewrite_files, found.files_after)
    assert 0 < found.rewrite_bytes < found.bytes
    assert "worth a rewrite: 5 data files" in " ".join(tables_health.run(catalog.lakehouse).summary())
