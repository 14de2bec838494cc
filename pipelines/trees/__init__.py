"""Flushing the subtrees of a version, and what that costs and saves."""
