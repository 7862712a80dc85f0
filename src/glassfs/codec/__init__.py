"""Decoders from stored bytes to raw bytes, encoders for views, and checksums. A format names the codec of a block and
its checksum; ``glassfs.content.Decoded`` then makes any range of the block readable, decoding it once.
"""
