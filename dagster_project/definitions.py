"""What Dagster loads: the lakehouses of ``lakehouses.yaml``, each with definitions of its own or as a partition."""

from dagster_project import warm
from dagster_project.factory import of_file

warm.start_runs_warm()
defs = of_file()
