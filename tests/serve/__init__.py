"""Tests of glassfs serve."""
