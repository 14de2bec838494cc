"""Every test here runs on the simulation's own time."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.clock import own_time


@pytest.fixture(autouse=True, scope="session")
def _own_time() -> Iterator[None]:
    with own_time():
        yield


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of runs warn of what was made to happen to them."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
