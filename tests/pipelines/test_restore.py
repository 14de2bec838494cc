"""Restore: the definitions that it brings back are proved first, by either engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines import restore
from tests.support.lakes import GOOD, content, with_a_mistake
from tests.support.surgery import Surgery, listing
from trinitylake_core import Corrupt, Lakehouse


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    return with_a_mistake(tmp_path)


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.spark)])
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
        restore.run(spark, lake, config)
    assert before == listing(surgery.directory)
    surgery.write(path, data)
    done = restore.run(spark, lake, config)
    assert (engine, 11, GOOD + 2) == (done.engine, done.definitions_checked, done.version_after)
    assert lake.at(version=GOOD).tables("ns0") == lake.tables("ns0")
    assert {"a": "b"} == lake.table("ns1", "t001").properties
