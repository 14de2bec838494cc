"""What leaves say, settled in the tasks that read them: nothing above them says anything about nearly all of it.

What a key means is said by the highest node that has it. To bring all that is said of each key together, Spark would
have to group every entry of a lakehouse. What nodes above the leaves say is a hundredth of it: the hashes of those keys
go to the tasks, and what a leaf says of any other key counts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from pipelines.engine.model import BINARY
from pipelines.engine.spark import Batches, collect, map_batches
from pipelines.integrity.examine import SAID, Examiner, hashes_of
from pipelines.integrity.meaning import Meaning
from pipelines.trees.sparklevels import SparkLevels

_ABOVE_MOST: Final = 4 << 20
"""Entries above the leaves whose hashes are brought together: 16 MB of them."""
_HASHES: Final = pa.schema({"hashes": BINARY})


def settling(walk: SparkLevels, examiner: Examiner, meaning: Meaning) -> Examiner | None:
    """Return an examiner that settles entries of leaves where a walk reads them; ``None`` if that is not possible.

    Leaves contain nearly all entries of a lakehouse, and most of their keys are in no node above. Only the entries of
    keys that are also in nodes above have to be joined from several nodes. A check of definitions needs every entry.

    A job over what is above the leaves; 4 bytes for each entry there come to the driver and go to the tasks.
    """
    if meaning.read_definitions or walk.sums[SAID] > _ABOVE_MOST:
        return None
    above = map_batches(walk.rows().where("height > 0").select("entries"), _hashed, _HASHES)
    hashes = [np.frombuffer(row["hashes"], np.int32) for row in collect(above)]
    return replace(examiner, above=np.unique(np.concatenate([np.empty(0, np.int32), *hashes])))


def _hashed(batches: Batches) -> Batches:
    for batch in batches:
        hashes = hashes_of(batch.column("entries").flatten().field("key").to_pylist())
        yield pa.RecordBatch.from_pydict({"hashes": [np.unique(hashes).tobytes()]}, schema=_HASHES)
