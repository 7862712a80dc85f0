"""Mount, and speak with the kernel: its messages, the threads that answer them, and notifications of changes."""

from glassfs.mount.engines.engine import Engine
from glassfs.mount.engines.mounting import MountPoint

__all__ = ["Engine", "MountPoint"]
