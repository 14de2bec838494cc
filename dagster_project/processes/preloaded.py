"""What is loaded before runs are forked (:mod:`dagster_project.processes.warm`). Importing this module does the work.

Nothing here opens a connection or starts a thread: both would be broken in the forked processes.
"""

from __future__ import annotations

import gc
import importlib
import logging
from contextlib import suppress
from pathlib import Path
from typing import Final

_LATER: Final = (
    "PIL.GifImagePlugin",  # what Pillow loads when it writes its first picture
    "PIL.JpegImagePlugin",
    "PIL.PpmImagePlugin",
    "dagster._grpc.impl",  # what Dagster calls in the process of a run
    "dagster._core.execution.api",
    "dagster._core.executor.in_process",
    "dagster._core.instance.factory",
    "dagster._core.instance.runs.run_domain",
    "dagster._core.secrets",
    "dagster._core.storage.local_compute_log_manager",
    "dagster._core.storage.root",
    "dagster_project.processes.connections",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "matplotlib.layout_engine",
    "obstore.store",
    "pandas",  # pyarrow imports it where it is installed
    "psycopg2.extras",
    "pyarrow.compute",
    "pyarrow.parquet",
    "trinitylake_core.iceberg.catalog",  # with PyIceberg: 0.3 s of CPU for each run on tables
    "upath.implementations.local",
)
"""What runs import when they get there. None is needed here: what is missing, a run imports itself, or never."""
_TASKS: Final = Path("/proc/self/task")
_log: Final = logging.getLogger(__name__)


def _load() -> None:
    for name in _LATER:
        with suppress(ImportError):
            importlib.import_module(name)
    try:
        definitions = importlib.import_module("dagster_project.definitions")
        definitions.defs.get_repository_def().load_all_definitions()
    except Exception:  # noqa: BLE001 - the file may be damaged by now: each run loads it itself, and reports why it fails
        _log.exception("cannot load the definitions now: each run loads them itself")
    if _TASKS.is_dir() and len(list(_TASKS.iterdir())) > 1:
        _log.error("runs are forked from a process with more than one thread: they may hang")
    gc.collect()
    gc.freeze()  # what is shared with every run stays shared: no collection touches it


_load()
