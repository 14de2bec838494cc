"""What Dagster loads: the lakehouses of ``lakehouses.yaml``."""

from __future__ import annotations

from dagster_project.config import load
from dagster_project.factory import merged

_project = load()
defs = merged(_project.lakehouses, _project.notifications)
