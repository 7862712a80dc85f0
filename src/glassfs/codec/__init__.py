"""From stored bytes to raw bytes, and the checks on both."""
