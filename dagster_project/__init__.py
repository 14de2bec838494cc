"""Lakehouse maintenance in Dagster: assets, checks, jobs, schedules and sensors."""

from importlib.util import find_spec

from trinitylake_core.launch import require_ours

require_ours("pipelines")
if find_spec("dagster") is None:
    raise ModuleNotFoundError(
        "Dagster is not installed: pip install 'trinitylake-maintenance[dagster]'", name="dagster"
    )
