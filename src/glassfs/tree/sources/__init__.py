"""Sources as trees: ``sources`` is what a user named, ``folder`` a mirrored folder, ``joined`` tables over folders.

``own`` shows the container files themselves, ``viewed`` all views, and ``usage`` sums up sizes. ``walk`` walks
through folders for all of them. These modules work with any kind of store.
"""
