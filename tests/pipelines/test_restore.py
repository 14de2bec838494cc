"""Restore: the definitions that it brings back are proved first, by either engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines import export, restore
from pipelines.cli import main
from tests.support.lakes import GOOD, content, with_a_mistake
from tests.support.surgery import Surgery, listing
from trinitylake_core import Corrupt, Lakehouse


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    return with_a_mistake(tmp_path)


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow])])
def test_a_restore_proves_the_definitions_it_brings_back(
    lake: Lakehouse, engine: str, request: pytest.FixtureRequest
) -> None:
    spark = request.getfixturevalue("spark") if engine == "spark" else None
    config = restore.Config(only=["ns0.*"], version=GOOD, reason="r", engine=engine)
    path = content(lake.at(version=GOOD))[lake.codec.table("ns0", "t003")]
    surgery = Surgery(lake.root, lake.definition.order)
    data = surgery.read(path)
    surgery.remove(path)
    before = listing(surgery.directory)
    with pytest.raises(Corrupt, match=path):
        restore.run(lake, config, spark)
    assert before == listing(surgery.directory)
    surgery.write(path, data)
    done = restore.run(lake, config, spark)
    assert (engine, 11, GOOD + 2) == (done.engine, done.definitions_checked, done.version_after)
    assert lake.at(version=GOOD).tables("ns0") == lake.tables("ns0")
    assert {"a": "b"} == lake.table("ns1", "t001").properties


def test_restore_from_another_root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan and its next step on the command line; from itself it is refused."""
    lake = with_a_mistake(tmp_path)
    good = lake.at(version=GOOD)
    copy = (tmp_path / "backup").as_uri()
    export.run(lake, copy, export.Config(version=GOOD, engine="local"))
    common = ["restore", lake.root, "--only", "*", "--from", copy, "--reason", "r", "--engine", "local"]
    assert 0 == main([*common, "--dry-run"])
    told = capsys.readouterr().out
    assert f"as they were in version {GOOD}" in told
    assert f"at {copy}/" in told
    assert "objects: 11 added, 0 removed, 1 changed" in told
    assert f"--expected-version {lake.version}" in told
    assert 0 == main([*common, "--expected-version", str(lake.version), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert (lake.version + 1, f"{copy}/") == (document["version_after"], document["plan"]["source"])
    names = [(each.kind, each.namespace, each.name) for each in good.objects()]
    assert names == [(each.kind, each.namespace, each.name) for each in lake.refresh().objects()]
    common[5] = lake.root
    assert 2 == main(common)
    assert "the other lakehouse is this one" in capsys.readouterr().err
