"""Lakehouse maintenance in Dagster: assets, checks, jobs, schedules and sensors."""

from trinitylake_core.launch import refuse_foreign

refuse_foreign("pipelines")
