"""Copies of lakehouses: their plan, the destination, and the copying of files."""
