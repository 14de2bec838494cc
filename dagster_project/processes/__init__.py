"""The processes of a Dagster deployment: how they start, what they keep, and how their deaths are noticed.

Nothing in here knows lakehouses; it would serve any project. Each part answers one weakness of Dagster's own processes:

* **Runs start slowly.** Dagster starts a Python interpreter for each run. :mod:`~dagster_project.processes.warm` forks
  runs from a process that has loaded everything (:mod:`~dagster_project.processes.preloaded`): 1.34 instead of 5.96
  seconds of CPU a run.
* **Each query makes a connection.** :mod:`~dagster_project.processes.connections` keeps those to PostgreSQL. It is
  named in ``dagster.yaml``, and imported by Dagster alone.
* **A code server may be up and of no use.** :mod:`~dagster_project.processes.code_server` ends itself then, so that a
  service manager starts it again.
* **A run whose process died counts as running, and holds the slot of its pool.**
  :mod:`~dagster_project.processes.dead_runs` ends it and frees the slot: before a code server starts, every few seconds
  while it serves, and at each tick of the compaction sensor, which also runs where ``dagster dev`` does.

The rest of the project uses ``start_runs_warm`` and ``Undertaker``, each from its module: two of the modules are also
programs, which Python starts with ``-m`` and which their package must not have imported before.
"""
