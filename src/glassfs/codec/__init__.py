"""Decoders from stored bytes to raw bytes, encoders for views, and checksums."""
