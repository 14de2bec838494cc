"""A Spark data source ``trinitylake``: what a lakehouse holds, as tables (``docs/spark.md``)."""
