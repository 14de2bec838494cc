"""The name in units from before 0.1.0; today it is :mod:`dagster_project.instance`."""

from dagster_project.processes.dead_runs import main

if __name__ == "__main__":
    main()
