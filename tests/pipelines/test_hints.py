"""Jobs are no methods of a lakehouse: who tries one is told the call, and the call works."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.lakes import filled, new_lake
from tests.support.surgery import files_of


@pytest.mark.parametrize("job", ["compact", "expire", "clean", "verify", "export"])
def test_the_call_that_a_missing_method_names_does_its_work(job: str, tmp_path: Path) -> None:
    lake = filled(new_lake(tmp_path / "lake"), tables=8)
    with pytest.raises(AttributeError, match=f"Lakehouse has no attribute '{job}'; from pipelines import") as raised:
        getattr(lake, job)
    call = str(raised.value).partition("; ")[2]
    exec(call, {"lake": lake, "target": (tmp_path / "copy").as_uri()})  # the advice is a program
    assert [] == list(lake.refresh().check())
    assert files_of(lake)


@pytest.mark.parametrize("job", ["load", "upgrade"])
def test_a_job_that_needs_a_place_is_named_with_it(job: str, tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match=f"from pipelines import {job}; {job}.run"):
        getattr(new_lake(tmp_path), job)
