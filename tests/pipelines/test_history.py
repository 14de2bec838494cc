"""The history and the difference of two versions as tables, for whoever has no terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines import diff, history, load
from tests.support.lakes import compacted, filled, new_lake, reopened
from tests.support.surgery import Surgery
from trinitylake_core import InvalidInput, Lakehouse, spec
from trinitylake_core.locations import root_path
from trinitylake_core.storage import open_storage


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lakehouse:
    """Versions 0 to 4 by two authors, then a compaction."""
    made = filled(new_lake(tmp_path), tables=8)
    monkeypatch.setattr("trinitylake_core.transactions.transaction_change.whoami", lambda: "bot@ci")
    with made.transaction(reason="Nightly deploy") as txn:
        txn.drop_table("ns0", "t000")
    compacted(made.refresh())
    return made.refresh()


def test_versions_are_chosen_by_who_when_and_why(lake: Lakehouse) -> None:
    def versions(**options: object) -> list[int]:
        return [each.version for each in history.run(lake, history.Config(**options)).versions]  # type: ignore[arg-type]

    assert [5, 4, 3, 2, 1, 0] == versions()
    assert [4] == versions(author="bot@*")
    assert [4] == versions(matching="DEPLOY")
    assert [] == versions(author="bot@*", matching="other")
    assert [5] == versions(operations=("compact",))
    times = {each.version: each.created_at for each in lake.history()}
    assert [5, 4, 3] == versions(since=times[3].isoformat())
    report = history.run(lake, history.Config(limit=2))
    assert (2, True, lake.root, 5) == (len(report.versions), report.more, report.root, report.version)
    assert not history.run(lake, history.Config(limit=6)).more


def test_versions_that_cannot_be_read_come_first(lake: Lakehouse) -> None:
    Surgery(lake.root, lake.definition.order).write(root_path(5), b"rubbish")
    cold = Lakehouse.open(open_storage(*lake.storage.spec()), damaged=True)
    assert [5, 4, 3, 2, 1, 0] == [each.version for each in history.run(cold).versions]


@pytest.mark.parametrize("options", [{"limit": -1}, {"since": "yesterday"}])
def test_wrong_settings_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        history.Config(**options)  # type: ignore[arg-type]


def test_a_difference_is_counted_and_cut(lake: Lakehouse) -> None:
    old, new = reopened(lake).at(version=1), lake.at(version=4)
    report = diff.report(old, new, limit=3)
    assert ({"added": 7, "removed": 0, "changed": 0}, 3) == (report.counts, len(report.changes))
    assert (lake.root, lake.root, 1, 4) == (report.root, report.other, report.a, report.b)
    assert 7 == len(diff.report(old, new).changes)


def test_a_load_counts_what_it_loaded(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    lines = ['{"create_namespace": {"namespace": "sales"}}', '{"create_table": {"namespace": "sales", "name": "t"}}']
    (tmp_path / "objects.jsonl").write_text("\n".join(lines))
    load.run(lake, str(tmp_path / "objects.jsonl"), load.Config(engine="local"))
    assert (spec.OP_LOAD, 2) == ((info := lake.refresh().info()).operation, info.changes)
