"""Tests of ``dagster_project``."""
