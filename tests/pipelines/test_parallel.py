"""What is streamed from Spark is made by tasks at once; what was lost on the way is said in a sentence."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError

from pipelines.engine import Row, Rows
from pipelines.engine.model import LONG, TEXT
from pipelines.engine.spark import SparkEngine, count_tasks, raise_own_errors
from pipelines.session import session_parallelism
from trinitylake_core.errors import StorageDenied, StorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAMED = pa.schema({"name": TEXT, "other": TEXT})
_MET = pa.schema({"name": TEXT, "met": TEXT})
_NUMBERS = pa.schema({"number": LONG})
_PATIENCE_SECONDS = 20.0


def meet(rows: Iterator[Row], folder: str) -> Iterator[tuple[str, str]]:
    """Yield whether a task ran while the other one did."""
    for row in rows:
        Path(folder, row["name"]).touch()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        other = Path(folder, row["other"])
        while not other.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield row["name"], "met" if other.exists() else "alone"


@pytest.mark.spark
@pytest.mark.parametrize("few", [False, True])
def test_what_is_streamed_is_made_by_all_tasks_at_once(spark: SparkSession, tmp_path: Path, few: bool) -> None:
    """Each of two tasks waits for the other one: made one after the other, the first would be alone."""
    engine = SparkEngine(lambda: spark)
    given = engine.table([{"name": "a", "other": "b"}, {"name": "b", "other": "a"}], _NAMED)
    found = engine.map(partial(meet, folder=str(tmp_path)), given, _MET, each=1).stream(few=few)
    assert [("a", "met"), ("b", "met")] == sorted((row["name"], row["met"]) for row in found)
    engine.close()


def count_rows(rows: Iterator[Row]) -> Iterator[tuple[int]]:
    """Yield how many rows a task was given."""
    yield (sum(1 for _ in rows),)


@pytest.mark.spark
@pytest.mark.parametrize("of_query", [False, True])
def test_rows_are_dealt_to_tasks_of_about_the_same_number(spark: SparkSession, of_query: bool) -> None:
    engine = SparkEngine(lambda: spark)
    rows: Rows = engine.table([{"number": number} for number in range(4_000)], _NUMBERS)
    if of_query:
        rows = engine.sql("SELECT number, count(*) AS times FROM given GROUP BY number", given=rows)
    dealt = [row["number"] for row in engine.map(count_rows, rows, _NUMBERS, each=1).list()]
    assert (8 * session_parallelism(spark), 4_000) == (len(dealt), sum(dealt))
    assert max(dealt) <= 1.1 * 4_000 / len(dealt)
    engine.close()


@pytest.mark.parametrize(
    ("rows", "cores", "tasks"),
    [(0, 2, 1), (256, 2, 1), (257, 2, 2), (20_000, 2, 9), (200_000, 2, 16), (200_000, 50, 150), (1_000_000, 50, 400)],
)
def test_many_rows_are_more_and_smaller_tasks(rows: int, cores: int, tasks: int) -> None:
    """The last task is an eighth of what a core does, not a third; few rows are dealt to no more tasks than before."""
    assert tasks == count_tasks(rows, 256, cores)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            Py4JError("[CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] Checkpoint block rdd_7_1 not found!"),
            "rows that cannot be made",
        ),
        (
            Py4JError(
                "Lost task 0.3 in stage 3.0 (TID 9) (10.0.0.7 executor 4): ExecutorLostFailure (executor 4 exited"
            ),
            r"lost again and again \(10.0.0.7\)",
        ),
        (Py4JError("ShuffleMapStage 32 has failed the maximum allowable number of times: 4."), "lost again and again"),
        (Py4JError("java.io.IOException: No space left on device"), "the disk of a machine of the cluster is full"),
        (Py4JError("Job 3 cancelled because SparkContext was shut down"), "has ended"),
        (ConnectionRefusedError(111, "Connection refused"), "the Java process of Spark has ended"),
        (Py4JError("Answer from Java side is empty"), "the Java process of Spark has ended"),
    ],
)
def test_what_spark_lost_is_said_with_what_to_do(error: Exception, words: str) -> None:
    with pytest.raises(StorageError, match=rf"{words}.*run it again"), raise_own_errors():
        raise error


def test_an_executor_without_credentials_is_named_and_not_this_process() -> None:
    text = (
        "trinitylake_core.errors.StorageDenied: get of s3://b/x: NoCredentialsError: Unable to locate credentials. "
        "Pass key and secret, or profile, as storage options\n"
    )
    with (
        pytest.raises(StorageDenied, match="its executor lacks the credentials that this process has"),
        raise_own_errors(),
    ):
        raise Py4JError(text)
