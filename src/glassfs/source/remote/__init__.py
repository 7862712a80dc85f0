"""Stores whose files are elsewhere, read over a network."""
