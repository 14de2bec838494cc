"""The archive of ``docs/production.md``: workers whose Python has no packages, and what Spark unpacks for them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from importlib.metadata import distribution
from pathlib import Path

import pyspark
import pytest
from packaging.requirements import Requirement

from tests.support.lakes import content, filled, reopened
from tests.support.old_spark import old_spark_in
from tests.support.programs import run_program
from tests.support.slow_s3 import run_slow_s3
from trinitylake_core import Lakehouse

ROOT = Path(__file__).parents[2]
_RECIPE = re.compile(r"executor/bin/pip install --constraint constraints\.txt ([a-z0-9 -]+) venv-pack\n")


def _recipe() -> list[str]:
    """Return the packages that the page tells people to install."""
    found = _RECIPE.search((ROOT / "docs" / "production.md").read_text(encoding="utf-8"))
    assert found is not None
    return found[1].split()


def _with_what_they_need(names: list[str]) -> set[str]:
    """Return what pip would install for packages."""
    found, waiting = set[str](), list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            needs = map(Requirement, distribution(name).requires or [])
            waiting += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return found


def _bare(directory: Path) -> Path:
    """Return an environment of this Python without any package."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    return directory


def _packed(directory: Path, names: list[str]) -> Path:
    """Return the archive of an environment with packages, laid out as venv-pack does it."""
    inside = _bare(directory / "executor")
    archive = directory / "executor.tar.gz"
    library = Path("lib") / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(inside, ".")
        for name in _with_what_they_need(names):
            for file in distribution(name).files or []:
                if ".." not in file.parts and "__pycache__" not in file.parts:
                    packed.add(str(file.locate()), str(library / file))
    return archive


_PROGRAM = """
    import json, sys
    from pathlib import Path
    from pipelines import compaction, verify
    from pipelines.session import lazy_session
    from tests.support.standalone import standalone
    from trinitylake_core import Lakehouse

    def where(batches):
        import sys, pyarrow as pa
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"prefix": [sys.prefix], "file": [pa.__file__]})

    archive, bare, root, options, directory = sys.argv[1:]
    lake = Lakehouse.open(root, storage_options=json.loads(options))
    with standalone(1, Path(directory), python=bare) as cluster:
        conf = {"spark.archives": archive + "#environment", "spark.pyspark.python": "./environment/bin/python"}
        with lazy_session(cluster.session(**conf)) as spark:
            assert compaction.run(lake, compaction.Config(engine="spark"), spark).proved
            assert verify.run(lake.refresh(), verify.Config(engine="spark"), spark).ok
            row = spark().range(1).mapInArrow(where, "prefix string, file string").collect()[0]
            version = spark().version
    assert row.prefix.startswith(directory) and "environment" in row.prefix, row
    assert row.file.startswith(row.prefix), row
    print(version)
"""


@pytest.mark.spark
@pytest.mark.slow
def test_workers_with_nothing_but_the_archive_compact_and_verify(tmp_path: Path) -> None:
    assert pyspark.__version__ == _compacted_and_verified(tmp_path)


@pytest.mark.spark
@pytest.mark.slow
def test_on_spark_3_5_they_do_so_too(tmp_path: Path) -> None:
    """Driver, master and workers are of that version; the archive has no Spark: that comes with the cluster."""
    assert "3.5" == _compacted_and_verified(tmp_path, old_spark_in(tmp_path / "spark35"))[:3]


def _compacted_and_verified(tmp_path: Path, *first: Path) -> str:
    """Have workers without packages compact and verify a lakehouse on S3; return the version of their Spark."""
    bare = _bare(tmp_path / "bare") / "bin" / "python"
    empty = subprocess.run([str(bare), "-c", "import pyarrow"], capture_output=True, text=True, check=False)
    assert "No module named 'pyarrow'" in empty.stderr
    directory = tmp_path / "cluster"
    directory.mkdir()
    archive = _packed(tmp_path, _recipe())
    with run_slow_s3(tmp_path) as server:
        lake = Lakehouse.create(server.new_root(), storage_options=server.options, order=4)
        before = content(filled(lake, tables=160, changes=20).refresh())
        version = _run([str(archive), str(bare), lake.root, json.dumps(server.options), str(directory)], *first)
        assert before == content(reopened(lake))
        assert [] == list(reopened(lake).check(definitions=True))
    return version


def _run(arguments: list[str], *first: Path) -> str:
    done = run_program(_PROGRAM, *arguments, seconds=400, PYTHONPATH=os.pathsep.join(map(str, [*first, ROOT])))
    assert 0 == done.returncode, done.stderr[-4000:]
    return done.stdout.strip()
