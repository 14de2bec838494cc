"""Benchmarks: costs side by side with what people would use instead, in one run."""
