"""The files of Iceberg tables: which there are, which versions need them, and what may be deleted."""
