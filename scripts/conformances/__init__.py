"""Compare a mount with a read-only bind mount of the same files.

Each check is a function that is called for both trees. Its result, or the error that it fails with, is text, and both
texts have to be equal. So the kernel and another file system say what is expected, not this package.
"""
