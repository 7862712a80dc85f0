"""Containers of stores: what is open, which files are any, leases on their versions, and what changes in them."""
