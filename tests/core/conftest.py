"""What tests of the core share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.lakes import FAST
from trinitylake_core import Lakehouse

if TYPE_CHECKING:
    from trinitylake_core.rest import Served


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """Return an empty lakehouse on this disk; many files have a ``lake`` of their own instead."""
    return Lakehouse.create((tmp_path / "lake").as_uri(), storage_options=FAST)


@pytest.fixture
def served(lake: Lakehouse) -> Iterator[Served]:
    """Return an endpoint over the lakehouse."""
    from trinitylake_core.rest import endpoint

    with endpoint(lake) as at:
        yield at
