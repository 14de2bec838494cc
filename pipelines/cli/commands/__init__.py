"""The commands of ``trinitylake``: decorated functions in the modules of this folder, listed in ``index``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipelines.cli.commands.command import Command, Result

if TYPE_CHECKING:
    from pipelines.cli.commands.command import COMMANDS

__all__ = ["COMMANDS", "Command", "Result"]


def __getattr__(name: str) -> Any:
    """Load every command when somebody asks for all of them."""
    if name != "COMMANDS":
        raise AttributeError(name)
    from pipelines.cli.commands.index import load_all

    return load_all()
