"""Proving that versions are intact, node by node, in this process or on Spark."""
