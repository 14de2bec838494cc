"""The commands of ``trinitylake``. A new one is a decorated function in a module that is imported here."""

from pipelines.cli.commands import changing, jobs, reading, recovery, retention, versions
from pipelines.cli.commands.command import COMMANDS, Command, Result

__all__ = ["COMMANDS", "Command", "Result", "changing", "jobs", "reading", "recovery", "retention", "versions"]
