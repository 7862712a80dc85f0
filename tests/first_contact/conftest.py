"""Fixtures of the sessions."""

from tests.mount.conftest import public_folder

__all__ = ["public_folder"]
