"""What tests of the core share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.lakes import FAST
from trinitylake_core import Lakehouse


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """Return an empty lakehouse on this disk; many files have a ``lake`` of their own instead."""
    return Lakehouse.create((tmp_path / "lake").as_uri(), storage_options=FAST)
