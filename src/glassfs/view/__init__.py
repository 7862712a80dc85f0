"""Contents as files. ``contract`` defines views; ``canonical`` has the ones that every tree shows.

All other views are derived: ``available`` returns them, and a tree has a ``ViewSet`` of those that the user asked for.
"""

from glassfs.view.canonical import data_of, file_of, folder_of, has_file
from glassfs.view.contract import ALL, File, Key, Shown, View, ViewSet, available, chosen

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
