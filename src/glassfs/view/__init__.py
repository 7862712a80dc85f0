"""How contents look as files. ``contract`` says what a view is, ``canonical`` has those that every tree shows.

All others are derived: ``registry`` knows them, and a tree has a ``ViewSet`` of those that were asked for.
"""

from glassfs.view.canonical import data_of, file_of, folder_of, has_file
from glassfs.view.contract import File, Key, Shown, View
from glassfs.view.registry import ALL, ViewSet, available, chosen

__all__ = [
    "ALL",
    "File",
    "Key",
    "Shown",
    "View",
    "ViewSet",
    "available",
    "chosen",
    "data_of",
    "file_of",
    "folder_of",
    "has_file",
]
