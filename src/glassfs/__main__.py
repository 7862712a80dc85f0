"""``python -m glassfs``."""

from glassfs.cli import main

main()
