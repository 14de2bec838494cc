"""Compaction of tables: which files are worth a rewrite, the rewrite by an engine, and the proof of it."""
