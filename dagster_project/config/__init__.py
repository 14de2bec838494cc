"""``lakehouses.yaml``: how it is read, and what its fields mean."""

from dagster_project.config.file import ENV_FILE, config_path, load, load_head, parse
from pipelines.source.lakehouses import ConfigError
