"""Upgrade: what its tasks cannot do is named, and the lakehouse that it writes says what the old one said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipelines import upgrade
from tests.support.lakes import filled, new_lake
from trinitylake_core.errors import NotAFile


@pytest.mark.spark
@pytest.mark.slow
def test_a_file_that_a_task_cannot_write_is_named(spark: Any, tmp_path: Path) -> None:
    lake = filled(new_lake(tmp_path), tables=20)
    target = tmp_path / "target"
    path = next(entry.path for entry in lake.objects())
    (target / path).mkdir(parents=True)  # where a file is to be written
    with pytest.raises(NotAFile, match=path):
        upgrade.run(lake, target.as_uri(), upgrade.Config(engine="spark"), spark)
