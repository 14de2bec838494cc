"""Mark and sweep over the files of a lakehouse."""
