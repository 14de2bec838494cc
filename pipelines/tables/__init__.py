"""Changing Iceberg tables: runs over many of them, each by the policy for its name, and their compaction."""
