"""Paths on the command line that must not be looked at while it is read, as ``click.Path`` does.

A mount point may be one whose daemon hangs, and then whoever looks at it hangs as well.
"""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem


def complete_path(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Lets the shell complete it as the path of a file or a folder."""
    return [CompletionItem(incomplete, type="file")]
