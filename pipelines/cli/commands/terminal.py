"""Commands about the terminal itself: completion."""

from __future__ import annotations

from click.shell_completion import get_completion_class

from pipelines.cli.arguments import COMPLETE_VARIABLE, PROGRAM, program
from pipelines.cli.commands.command import Call, Result, command
from trinitylake_core.errors import InvalidInput

_SHELLS = ("bash", "zsh", "fish")


@command(
    "completion SHELL",
    "print the script that completes commands and options",
    "trinitylake completion bash >> ~/.bashrc",
    arguments={"SHELL": f"{', '.join(_SHELLS)}"},
    details="""\
  bash  trinitylake completion bash >> ~/.bashrc
  zsh   trinitylake completion zsh >> ~/.zshrc
  fish  trinitylake completion fish > ~/.config/fish/completions/trinitylake.fish

Open a new terminal afterwards.""",
)
def completion(call: Call) -> Result:
    """Print a completion script."""
    shell = call.options.shell
    found = get_completion_class(shell) if shell in _SHELLS else None
    if found is None:
        raise InvalidInput(f"SHELL must be one of {', '.join(_SHELLS)}, not {shell!r}")
    script = found(program(), {}, PROGRAM, COMPLETE_VARIABLE).source()
    return Result({"shell": shell, "script": script}, [script.strip()])
