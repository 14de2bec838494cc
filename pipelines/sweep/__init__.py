"""Mark and sweep over the files of a lakehouse, in this process or on Spark."""
