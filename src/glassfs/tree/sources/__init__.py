"""Sources as trees: ``sources`` is what a user named, ``folder`` a mirrored folder.

``own`` shows the container files themselves, ``viewed`` all views, and ``usage`` sums up sizes. ``walk`` walks
through folders. These modules work with any kind of store.
"""
