"""Measures glassfs against other mounts of the same data. ``scripts/benchmark --help`` tells how.

``data`` writes the containers, ``sides`` mounts them and what the peers show of them, one of these is ``floor.c``.
``recipes`` are the ways to work with a mount, ``tasks`` what they do in a process of its own and ``workers`` what many
do at once, ``counting`` asks for the kernel's requests. ``server`` is a slow S3, ``reaching`` are the ways to work with
what it has. ``cpu`` measures processor time in processes that have a ``kernel`` of their own. ``workloads`` and
``growth`` say what is measured with which goal, ``runner`` measures, ``report`` and ``markdown`` show what came out.
"""
