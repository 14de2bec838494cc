"""One set of definitions for a fleet: each lakehouse is a partition, looked at by one sensor and one schedule."""
