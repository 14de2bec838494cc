"""What the jobs in ``pipelines/tables_*.py`` share that change Iceberg tables, and the parts of the compaction."""
