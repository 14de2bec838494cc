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
from trinitylake_core.iceberg.reading.file_groups import FileGroup, FileGroups, GroupKey
from trinitylake_core.iceberg.reading.references import DescribedFile

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


@pytest.mark.parametrize(
    ("small", "each", "large", "after", "gain", "wanted", "reason"),
    [
        (0, MIB, 3, 1, -1, False, decision.FEW),
        (1, MIB, 0, 1, 0, False, decision.FEW),
        (4, MIB, 0, 1, 3, False, decision.FEW),
        (5, MIB, 0, 1, 4, True, decision.MERGES),
        (5, MIB, 1, 1, 4, False, decision.FEW),
        (11, MIB, 100, 1, 10, False, decision.FEW),
        (12, MIB, 100, 1, 11, True, decision.SMALL),
        (100, MIB, 0, 1, 99, True, decision.SMALL),
        (12, 380 * MIB, 0, 9, 3, True, decision.SMALL),
        (13, 383 * MIB, 0, 10, 3, False, decision.SAME),
        (1000, 10 * MIB, 0, 20, 980, True, decision.SMALL),
    ],
)
def test_small_files(small: int, each: int, large: int, after: int, gain: int, wanted: bool, reason: str) -> None:
    found = decide_group(group_of(small, each, large=large), TARGET, GroupRules(), NOW)
    assert (small, after, gain, wanted, reason) == (found.files, found.after, found.gain, found.wanted, found.reason)
    assert 2 * small * each <= found.cost


def test_what_a_rewrite_has_made_is_not_rewritten_again() -> None:
    """Whatever the sizes: a night after the rewrite there is nothing left that is worth one."""
    for small in range(2, 60):
        for each in (1, MIB, 100 * MIB, 257 * MIB, 383 * MIB):
            found = decide_group(group_of(small, each), TARGET, GroupRules(), NOW)
            if found.wanted:
                size = found.bytes // found.after
                left = found.after if size < 0.75 * TARGET else 0
                again = group_of(left, size, large=found.after - left)
                assert not decide_group(again, TARGET, GroupRules(), NOW).wanted, (small, each)


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


@pytest.mark.parametrize("small", [300, 400])
def test_few_deleted_rows_make_no_rewrite_of_a_whole_partition(small: int) -> None:
    """They would read and write 500 GiB for some small files."""
    group = replace(group_of(small, MIB, large=1000), delete_files=1, deletes=1)
    found = decide_group(group, TARGET, GroupRules(), NOW)
    assert (True, decision.SMALL, small, small * MIB, 0) == (
        found.wanted, found.reason, found.files, found.bytes, found.deletes,
    )  # fmt: skip
    all_small = replace(group_of(20, MIB), delete_files=2, deletes=1)
    found = decide_group(all_small, TARGET, GroupRules(), NOW)
    assert (True, 20, 21, 2) == (found.wanted, found.files, found.gain, found.deletes)


def with_large(group: FileGroup, files: int) -> FileGroup:
    """Return a group with files of twice the target size."""
    return replace(
        group, files=group.files + files, bytes=group.bytes + 2 * files * TARGET,
        large_files=files, large_bytes=2 * files * TARGET,
    )  # fmt: skip


def test_large_files_become_several_and_the_small_ones_beside_them_go_with_them() -> None:
    """The small ones alone are too few, or enough; also without large ones to be split, which is said apart."""
    for small, wanted, reason in ((3, False, decision.LARGE), (12, True, decision.SMALL)):
        group = with_large(group_of(small, MIB, large=5), 2)
        found = decide_group(group, TARGET, GroupRules(), NOW)
        assert (True, reason, small + 2, 5) == (found.wanted, found.reason, found.files, found.after)
        merge = decide_group(group_of(small, MIB, large=7), TARGET, GroupRules(), NOW)
        assert found.merge is not None
        assert (small, wanted, merge.after) == (found.merge.files, found.merge.wanted, found.merge.after)
    one = with_large(group_of(0), 1)
    table = decide_table({GroupKey(0, b""): one}, TARGET, GroupRules(), NOW)
    assert (0, 1, 2) == (table.mergeable, table.files, table.after)
    hot = replace(one, newest_millis=NOW)
    assert not decide_group(hot, TARGET, GroupRules(settled_seconds=7200), NOW).wanted


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
    "wrong", [{"min_files": 1}, {"deletes": 0}, {"deletes": 1.5}, {"share": 0}, {"target": 1}, {"settled_seconds": -1}]
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
