"""What is completed on the command line without looking at it, as ``click.Path`` does.

A mount point may be one whose daemon hangs, and then whoever looks at it hangs as well; what a URL stands for is too
far away to be asked at each press of a key.
"""

from __future__ import annotations

from collections.abc import Mapping

import click
from click.shell_completion import CompletionItem

from glassfs.source.remote.url import is_url


def complete_path(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Lets the shell complete it as the path of a file or a folder."""
    return [] if is_url(incomplete) else [CompletionItem(incomplete, type="file")]


def completed_option(descriptions: Mapping[str, str], incomplete: str) -> list[CompletionItem]:
    """Options after ``-o`` that are described like this; several are separated by commas, and the last is completed."""
    before, comma, begun = incomplete.rpartition(",")
    given = {option.partition("=")[0] for option in before.split(",")}
    found = []
    for names, meaning in descriptions.items():
        for option in names.split(", "):
            name, equals, _ = option.partition("=")
            if name.startswith(begun) and name not in given:
                found.append(CompletionItem(f"{before}{comma}{name}{equals}", help=meaning))
    return found
