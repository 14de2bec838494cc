"""Reports of ``pipelines`` as Dagster metadata: tables, numbers, texts and pictures."""
