"""The commands of ``trinitylake``: one attribute each, listed in ``pipelines.cli.contents``."""
