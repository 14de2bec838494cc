"""A bulk load: what tasks and processes do of it, and what it refuses."""
