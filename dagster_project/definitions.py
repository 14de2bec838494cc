"""What Dagster loads: the lakehouses of ``lakehouses.yaml``, each with definitions of its own or as a partition."""

from dagster_project.factory import of_file
from dagster_project.processes.warm import start_runs_warm

start_runs_warm()
defs = of_file()
