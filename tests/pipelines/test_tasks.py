"""What bounds the memory of jobs: pieces by weight, and runs of what consecutive roots share."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipelines.bounded import by_weight
from pipelines.trees.runs import in_runs

_PATHS = st.frozensets(st.sampled_from("abcdef"))
_ROOTS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 1), _PATHS, _PATHS), max_size=12)


def rows_of(roots: list[tuple[int, int, frozenset[str], frozenset[str]]]) -> list[dict[str, Any]]:
    version, rows = 0, []
    for gap, height, children, files in roots:
        version += gap
        rows.append({"path": f"root {version}", "height": height, "first": version, "last": version, "keys": 1})
        rows[-1] |= {"children": sorted(children), "files": sorted(files)}
    return rows


def tags(rows: list[dict[str, Any]], column: str) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the first and the last version of each path that rows of one height hold."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for row in rows:
        for path in row[column]:
            first, last = found.get((path, row["height"]), (row["first"], row["last"]))
            found[path, row["height"]] = min(first, row["first"]), max(last, row["last"])
    return found


@given(_ROOTS)
def test_runs_say_the_same_as_the_roots(roots: list[tuple[int, int, frozenset[str], frozenset[str]]]) -> None:
    rows = rows_of(roots)
    runs = [dict(row) for row in in_runs(rows)]
    assert [row["path"] for row in runs if row["path"] is not None] == [row["path"] for row in rows]
    for column in ("children", "files"):
        assert tags(runs, column) == tags(rows, column)


@given(_ROOTS)
def test_a_run_covers_exactly_the_versions_that_hold_its_paths(
    roots: list[tuple[int, int, frozenset[str], frozenset[str]]],
) -> None:
    rows = rows_of(roots)
    held = {(row["first"], path) for row in rows for path in row["files"]}
    runs = [row for row in in_runs(rows) if row["path"] is None]
    covered = [
        (version, path) for row in runs for version in range(row["first"], row["last"] + 1) for path in row["files"]
    ]
    assert sorted(covered) == sorted(held)


def test_what_a_thousand_versions_share_is_told_once() -> None:
    buffer = [f"file {n}" for n in range(500)]
    rows = rows_of([(1, 1, frozenset("ab"), frozenset()) for _ in range(1000)])
    runs = list(in_runs({**row, "files": buffer} for row in rows))
    assert len(runs) == 1001
    assert sum(len(row["files"]) for row in runs) == 500


@given(st.lists(st.integers(1, 9)), st.integers(1, 20))
def test_pieces_are_bounded_and_complete(weights: list[int], most: int) -> None:
    pieces = list(by_weight(weights, lambda weight: weight, most))
    assert [each for piece in pieces for each in piece] == weights
    assert all(sum(piece[:-1]) < most for piece in pieces)
    assert all(sum(piece) >= most for piece in pieces[:-1])
