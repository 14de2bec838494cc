"""Real stores: ``make test-stores``."""
