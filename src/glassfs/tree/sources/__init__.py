"""Stores as trees: ``containers`` that are open, ``folder`` mirrors one, ``named`` is what a person named.

``own`` has the containers' own files and ``usage`` their sizes. Nothing here knows what kind of store it looks at.
"""
