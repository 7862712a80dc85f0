"""Mount, and speak with the kernel: its messages, the threads that answer them, and notifications of changes."""
