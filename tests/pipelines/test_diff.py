"""The difference of two versions: both engines yield the same, and spans cover every key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipelines import diff
from tests.support.lakes import compacted, new_lake
from trinitylake_core.diff import DifferingSubtrees, Span


@pytest.mark.spark
def test_both_engines_yield_the_same_differences(tmp_path: Path, spark: Any) -> None:
    lake = new_lake(tmp_path, order=8, target=8192)
    with lake.transaction() as txn:
        txn.create_namespace("ns")
        for number in range(0, 1200, 2):
            txn.put(lake.codec.table("ns", f"t{number:05}"), f"0000/0000/0000/00000000-{number}")
    compacted(lake)
    a = lake.refresh().version
    with lake.transaction() as txn:
        for number in range(0, 1200, 7):
            txn.put(lake.codec.table("ns", f"t{number:05}"), None if number % 3 == 0 else "0000/0000/0000/00000000-x")
    compacted(lake)
    with lake.transaction() as txn:
        txn.put(lake.codec.table("ns", "t00001"), "0000/0000/0000/00000000-y")
    lake.refresh()
    one, two = lake.at(version=a), lake.at(version=lake.version)
    here = list(diff.run(one, two, diff.Config("local")))
    there = list(diff.run(one, two, diff.Config("spark"), spark))
    assert here == there
    assert {"added", "removed", "changed"} == {change.change for change in here}
    assert here == list(diff.run(one, two)), "auto takes this process: no Spark runs elsewhere"


def test_spans_cover_every_key_once() -> None:
    keys = {None: 100, "b": 10, "d": 10, "f": 80, "h": 1}
    for want in (1, 2, 3, 100):
        spans = DifferingSubtrees(keys, finer=True).spans(want)
        assert [None, *(span.hi for span in spans[:-1])] == [span.lo for span in spans]
        assert spans[-1].hi is None
    assert [Span()] == DifferingSubtrees({}, finer=False).spans(4)
