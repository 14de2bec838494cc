"""What Dagster loads: the lakehouses of ``lakehouses.yaml``, each with definitions of its own or as a partition."""

from __future__ import annotations

from dagster_project import warm
from dagster_project.config import load, load_head
from dagster_project.config.file import Stanzas
from dagster_project.factory import fleet, merged

warm.start_runs_warm()
_head = load_head()
defs = (
    fleet(Stanzas(), _head.notifications)
    if _head.layout == "partitions"
    else merged(load().lakehouses, _head.notifications)
)
