"""Lakehouse maintenance in Dagster: assets, checks, jobs, schedules and sensors."""

from importlib.util import find_spec

from trinitylake_launch import describe_foreign

for name in ("trinitylake_core", "pipelines"):
    foreign = describe_foreign(name)
    if foreign is not None:
        raise ImportError(foreign, name=name)
if find_spec("dagster") is None:
    from trinitylake_core.extras import install_command  # only once it is known to be ours

    raise ModuleNotFoundError(f"Dagster is not installed: {install_command('dagster')}", name="dagster")
