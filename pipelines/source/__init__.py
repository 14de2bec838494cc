"""Reading what is to be loaded or applied: text files, entries, column types."""
