"""The same rows in other files: what replaces data files, and the figures that prove it."""
