"""Rows that outgrow memory: none is lost, and those that must meet come together."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.trees.spool import HASH, PARTS, PartFile, Spool, hashes_of, parts
from trinitylake_core.errors import StorageError

SCHEMA = pa.schema({HASH: pa.int64(), "name": pa.string()})
SMALL = 4096


def batch(names: list[str]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(hashes_of(names, len(names))), pa.array(names)], schema=SCHEMA)


def filled(limit_bytes: int, names: range) -> Spool:
    spool = Spool(SCHEMA, limit_bytes)
    for start in range(names.start, names.stop, 50):
        spool.add(batch([f"name {number}" for number in range(start, min(start + 50, names.stop))]))
    return spool


@pytest.mark.parametrize(("one", "two"), [(SMALL, SMALL), (SMALL, 1 << 20), (1 << 20, 1 << 20)])
def test_rows_that_must_meet_come_together(one: int, two: int) -> None:
    """Whether both spools, one or none of them went to the disk: every row comes once, beside those of its name."""
    left, right = filled(one, range(1000)), filled(two, range(600, 1400))
    assert ([one == SMALL, two == SMALL], 1000, 800) == ([left.spilled, right.spilled], left.rows, right.rows)
    for _ in range(2):  # reading takes nothing out
        pieces = [[table.column("name").to_pylist() for table in both] for both in parts(left, right)]
        assert len(pieces) == (PARTS if SMALL in {one, two} else 1)
        assert sorted(f"name {number}" for number in range(1000)) == sorted(name for mine, _ in pieces for name in mine)
        met = sorted(name for mine, yours in pieces for name in set(mine) & set(yours))
        assert sorted(f"name {number}" for number in range(600, 1000)) == met
    left.close()
    right.close()


def test_rows_are_taken_after_some_were_read() -> None:
    spool = filled(SMALL, range(500))
    assert 500 == sum(len(table) for (table,) in parts(spool))
    spool.add(batch(["late"]))
    assert 501 == sum(len(table) for (table,) in parts(spool)) == spool.rows
    spool.close()
    assert (0, False, 0) == (spool.rows, spool.spilled, sum(len(table) for (table,) in parts(spool)))


def test_no_room_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(StorageError, match="set TMPDIR"):
        filled(SMALL, range(500))


@pytest.mark.parametrize("pieces", [1, 1000])
def test_a_disk_that_is_full_is_said_with_what_to_do_and_hides_nothing_at_the_end(
    monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    """Also where what is written is so little that it is still in a buffer when it is read, and when it is let go."""
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: Path("/dev/full").open("r+b"))  # noqa: SIM115
    file = PartFile()
    with pytest.raises(StorageError, match=r"No space left on device.*set TMPDIR"):
        file.add(0, b"x" * 100 * pieces)
    file.close()
    assert not file


def test_where_there_is_no_directory_for_temporary_files_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/none"])
    with pytest.raises(StorageError, match="set TMPDIR"):
        PartFile().add(0, b"x")
