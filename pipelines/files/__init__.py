"""What jobs do with files: list, copy, delete, compare two stores, keep plans of it."""
