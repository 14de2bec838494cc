"""The tests: ``core``, ``pipelines`` and ``dagster`` mirror the packages, ``support`` is what they share."""
