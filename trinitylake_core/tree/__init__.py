"""The tree: nodes, their files, search, and everything that rewrites one (format, section 4)."""
