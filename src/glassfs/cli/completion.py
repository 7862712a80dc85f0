"""``glassfs completion``"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """For bash: 'glassfs completion bash > ~/.local/share/bash-completion/completions/glassfs'."""
    from glassfs.cli import glassfs

    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"{shell}: completion is not supported")
    click.echo(kind(glassfs, {}, "glassfs", "_GLASSFS_COMPLETE").source())
