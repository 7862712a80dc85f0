"""One module a format. Each recognises a source by its first bytes and turns it into contents."""
