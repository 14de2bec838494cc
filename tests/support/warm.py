"""Imported by the process that killed children are forked from: everything they need is loaded and used once.

Otherwise each child would import pyarrow's and botocore's late parts and parse the same service models again.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import botocore.loaders
import botocore.session

from pipelines import compaction
from tests.support import sweep
from tests.support.lakes import filled, new_lake

__all__ = ["sweep"]

_load = botocore.loaders.JSONFileLoader().load_file


@cache
def _loaded(path: str) -> Any:
    return _load(path)


botocore.loaders.JSONFileLoader.load_file = lambda self, path: _loaded(path)


def _use_everything() -> None:
    import s3fs

    s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)
    botocore.session.get_session().create_client(
        "s3", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"
    )
    with tempfile.TemporaryDirectory() as name:
        lake = filled(new_lake(Path(name)), tables=12)
        compaction.run(lake, compaction.Config(engine="local"))
        list(lake.check(definitions=True))


_use_everything()
