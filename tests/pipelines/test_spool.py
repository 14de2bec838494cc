"""Bytes between two steps: what there is no room for is an error that names what to do."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from pipelines.trees.spool import Scratch
from trinitylake_core.errors import StorageError


@pytest.mark.parametrize("limit", [0, 5, 1000])
def test_each_piece_is_found_where_it_begins(limit: int) -> None:
    """Whether all of them are in memory, some, or none."""
    scratch = Scratch(limit)
    pieces = [b"abc", b"", b"defg", b"h"]
    starts = [scratch.add(piece) for piece in pieces]
    assert pieces == [scratch.at(start, len(piece)) for start, piece in zip(starts, pieces, strict=True)]
    scratch.close()


def test_no_room_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(StorageError, match="set TMPDIR"):
        Scratch().add(b"x")


@pytest.mark.parametrize("pieces", [1, 1000])
def test_a_disk_that_is_full_is_said_with_what_to_do_and_hides_nothing_at_the_end(
    monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    """Also where what is written is so little that it is still in a buffer when it is read, and when it is let go."""
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: Path("/dev/full").open("r+b"))  # noqa: SIM115
    file = Scratch()
    with pytest.raises(StorageError, match=r"No space left on device.*set TMPDIR"):
        file.add(b"x" * 100 * pieces)
    file.close()
    assert not file.size


def test_where_there_is_no_directory_for_temporary_files_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/none"])
    with pytest.raises(StorageError, match="set TMPDIR"):
        Scratch().add(b"x")
