"""Spark 3.5 beside the Spark that the tests run on: a folder that goes before everything else in ``PYTHONPATH``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

_OLD: Final = ("pyspark>=3.5,<3.6", "py4j==0.10.9.7")
INSTALLED: Final = "TRINITYLAKE_SPARK_3_5"
"""Environment variable that names a folder with Spark 3.5; without it one is installed."""


def old_spark_in(folder: Path) -> Path:
    """Return a folder with Spark 3.5: the one that the environment names, or this one, into which it is installed."""
    if there := os.environ.get(INSTALLED):
        return Path(there)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *_OLD]
    subprocess.run(command, check=True, timeout=900)
    return folder
