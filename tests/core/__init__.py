"""Tests of ``trinitylake_core``."""
