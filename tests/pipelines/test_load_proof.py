"""What a load proves: all that was to be loaded and all that was to be kept is written, whatever messages wait."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pipelines import load
from pipelines.source import loading
from pipelines.source.loading import DefinitionWriter, Share, TreeEntry, scan_children
from tests.support.lakes import content, filled, new_lake
from trinitylake_core import Lakehouse
from trinitylake_core.errors import Corrupt
from trinitylake_core.tree import search
from trinitylake_core.tree.leafrun import Columns
from trinitylake_core.tree.node import Messages
from trinitylake_core.tree.proof import Witness
from trinitylake_core.tree.rewrite import Rewriter

Batches = Iterator[search.Batch]


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """A tree of several levels with messages that wait in it: sets, replacements and deletes."""
    lake = filled(new_lake(tmp_path), tables=90, changes=30)
    with lake.transaction() as txn:
        for number in range(0, 60, 6):
            txn.drop_table(f"ns{number % 3}", f"t{number:03}")
            txn.alter_table(f"ns{(number + 1) % 3}", f"t{number + 1:03}", properties={"a": "b"})
    assert lake.refresh().stats().messages
    return lake


@pytest.fixture
def source(tmp_path: Path) -> str:
    """Twenty objects that are there, and twenty that are not."""
    lines = [{"create_table": {"namespace": "ns1", "name": f"t{number:03}"}} for number in range(1, 60, 3)]
    lines += [{"create_table": {"namespace": "ns2", "name": f"new{number:02}"}} for number in range(20)]
    path = tmp_path / "source.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path.as_uri()


def _every_tenth_lost(rows: Iterator[Any]) -> Iterator[Any]:
    return (row for number, row in enumerate(rows, 1) if number % 10)


def _lost_while_waiting(patch: pytest.MonkeyPatch) -> None:
    """Between the scan and the new tree."""
    honest = Share.__init__

    def init(self: Share, rows: Sequence[Any]) -> None:
        honest(self, rows)
        self.old = dict(_every_tenth_lost(iter(self.old.items())))

    patch.setattr(Share, "__init__", init)


def _lost_by_the_scan(patch: pytest.MonkeyPatch) -> None:
    honest = search._scan

    def scan(*args: Any) -> Batches:
        for number, (keys, values) in enumerate(honest(*args), 1):
            if number % 10:
                yield keys, values

    patch.setattr(search, "_scan", scan)


def _messages_lost(patch: pytest.MonkeyPatch) -> None:
    honest = Messages.slice_between
    patch.setattr(Messages, "slice_between", lambda self, lo, hi: honest(self, lo, hi).slice(1))


def _lost_before_written(patch: pytest.MonkeyPatch) -> None:
    honest = DefinitionWriter.write_batches
    patch.setattr(DefinitionWriter, "write_batches", lambda self, rows: honest(self, _every_tenth_lost(rows)))


def _lost_while_built(patch: pytest.MonkeyPatch) -> None:
    honest = Rewriter.build

    def thinned(batches: Iterator[Columns]) -> Iterator[Columns]:
        for batch in batches:
            pairs = zip(batch.keys.to_pylist(), batch.values.to_pylist(), strict=True)
            rows = list(_every_tenth_lost(pairs))
            yield Columns.of([key for key, _ in rows], [value for _, value in rows])

    patch.setattr(Rewriter, "build", lambda self, batches, *args: honest(self, thinned(batches), *args))


def _new_ones_lost(patch: pytest.MonkeyPatch) -> None:
    honest = loading.pack_tree

    def packed(target: Any, storage: Any, rows: Iterator[TreeEntry]) -> Any:
        numbers = count()
        return honest(target, storage, (row for row in rows if row.data is None or next(numbers) % 10))

    patch.setattr(loading, "pack_tree", packed)


def _paths_exchanged(patch: pytest.MonkeyPatch) -> None:
    """Nothing is lost then, but two objects have each other's definition."""
    honest = Share.entries

    def exchanged(self: Share, existing: str) -> Iterator[TreeEntry]:
        rows = list(honest(self, existing))
        one, two = [number for number, row in enumerate(rows) if row.path][-4::3]
        rows[one], rows[two] = rows[one]._replace(path=rows[two].path), rows[two]._replace(path=rows[one].path)
        return iter(rows)

    patch.setattr(Share, "entries", exchanged)


def _a_range_left_out(patch: pytest.MonkeyPatch) -> None:
    """When the trees of several ranges are joined."""
    patch.setattr(loading, "KEYS", 40)
    patch.setattr(Rewriter, "join_without_key", lambda _, __, right: right)


SABOTAGE = [
    _lost_while_waiting, _lost_by_the_scan, _messages_lost, _lost_before_written, _lost_while_built, _new_ones_lost,
    _paths_exchanged, _a_range_left_out,
]  # fmt: skip


@pytest.mark.parametrize("existing", ["replace", "skip"])
@pytest.mark.parametrize("sabotage", SABOTAGE, ids=lambda each: each.__name__.strip("_"))
def test_a_load_that_loses_rows_is_not_committed(
    lake: Lakehouse, source: str, sabotage: Callable[[pytest.MonkeyPatch], None], existing: str
) -> None:
    """Wherever they get lost, although messages wait and the root cannot tell how many objects there are."""
    version = lake.version
    with pytest.MonkeyPatch.context() as patch:
        sabotage(patch)
        with pytest.raises(Corrupt, match="report this as a bug"):
            load.run(lake, source, load.Config(engine="local", existing=existing))
    assert version == lake.refresh().version


@pytest.mark.parametrize("existing", ["replace", "skip"])
def test_a_load_onto_waiting_messages_is_proved(lake: Lakehouse, source: str, existing: str) -> None:
    """Without sabotage it is committed, and everything is there."""
    before = content(lake)
    report = load.run(lake, source, load.Config(engine="local", existing=existing))
    after = content(lake.refresh())
    changed = {key for key, path in before.items() if after.get(key) != path}
    assert before.keys() <= after.keys()
    assert (report.added, report.replaced) == (len(after) - len(before), len(changed))
    assert [] == list(lake.check(definitions=True))


def test_a_part_of_a_tree_is_witnessed_child_by_child(lake: Lakehouse) -> None:
    """All parts together are the whole."""
    root = lake.root_node.node
    parts = [scan_children(lake.nodes, root, range(index, index + 1)) for index in range(len(root.children))]
    rows = [row for part in parts for keys, values in part for row in zip(keys, values, strict=True)]
    assert content(lake) == dict(rows)
    assert sorted(rows) == rows


def test_a_witness_finds_a_scan_that_reads_what_it_must_not(lake: Lakehouse) -> None:
    """A node twice, or one that nothing points to."""
    root = lake.root_node.node
    witness = Witness(lake.nodes)
    witness.begin(root)
    witness.read(root.children[0])
    with pytest.raises(Corrupt, match="nothing points to it"):
        witness.read(root.children[0])
