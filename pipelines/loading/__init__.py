"""Bulk load: sorting, cutting and building what was read, in this process or on Spark."""
