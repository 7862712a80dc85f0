"""Completion that does not touch the file, unlike ``click.Path``.

A mount point may belong to a daemon that hangs, and any access to it would hang as well; a URL is too slow to ask at
each press of a key.
"""

from __future__ import annotations

from collections.abc import Mapping

import click
from click.shell_completion import CompletionItem

from glassfs.source.remote.url import is_url


def complete_path(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete the path of a file or folder."""
    return [] if is_url(incomplete) else [CompletionItem(incomplete, type="file")]


def completed_option(descriptions: Mapping[str, str], incomplete: str) -> list[CompletionItem]:
    """Complete the last of several options separated by commas."""
    before, comma, begun = incomplete.rpartition(",")
    given = {option.partition("=")[0] for option in before.split(",")}
    found = []
    for names, meaning in descriptions.items():
        for option in names.split(", "):
            name, equals, _ = option.partition("=")
            if name.startswith(begun) and name not in given:
                found.append(CompletionItem(f"{before}{comma}{name}{equals}", help=meaning))
    return found
