"""The command line, ``trinitylake``: parsing, commands, reports and progress."""

from pipelines.cli.app import main

__all__ = ["main"]
