"""The name in the ``dagster.yaml`` of deployments from before 0.1.0; today it is :mod:`dagster_project.instance`."""

from dagster_project.processes.connections import PostgresStorage

__all__ = ["PostgresStorage"]
