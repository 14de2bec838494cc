"""Node files of a few bytes that would fill the memory are refused before they are expanded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.lakes import filled, new_lake, reopened
from tests.support.memory import leaves_of
from tests.support.surgery import Surgery
from trinitylake_core import CorruptNode, Lakehouse, spec
from trinitylake_core.locations import root_path
from trinitylake_core.tree import leafbatch, nodefile
from trinitylake_core.tree.arrowsize import batches, expanded_bytes
from trinitylake_core.tree.leafrun import Columns

ROWS = 20_000_000
MIB = 1 << 20


def column(kind: str, rows: int) -> pa.Array:
    """Return a column that compresses to next to nothing."""
    text = pa.py_buffer(bytes(4 * (rows + 1)))
    if kind == "NULLs":
        return pa.nulls(rows, pa.string())
    if kind == "empty texts":
        return pa.StringArray.from_buffers(rows, text, pa.py_buffer(b""))
    return pa.array(["x" * (4 * rows)])


def bomb(kind: str, codec: str | None, rows: int = ROWS, batches: int = 1) -> bytes:
    """Return a file of the four columns of a node."""
    columns = [column(kind, rows)] * 4
    schema = pa.schema([pa.field(name, pa.string()) for name in spec.COLUMNS])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        for _ in range(batches):
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return bytes(sink.getvalue())


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("kind", ["NULLs", "empty texts", "one text"])
@pytest.mark.parametrize("batches", [1, 3])
def test_a_bomb_is_refused(kind: str, codec: str, batches: int) -> None:
    """Whatever it is made of; it takes much less memory to refuse it than it declares."""
    data = bomb(kind, codec, ROWS // batches, batches)
    assert 3 * MIB > len(data)
    before = pa.total_allocated_bytes()
    for read in (nodefile.decode, nodefile.decode_head):
        with pytest.raises(CorruptNode, match=r"declares content of [0-9,]{11,} bytes, more than a node of its size"):
            read(data, "p")
    assert 4 * MIB > pa.total_allocated_bytes() - before


def test_a_root_that_would_take_gigabytes_costs_its_reader_little(tmp_path: Path) -> None:
    """In a process of its own, with less memory than the content takes."""
    lake = new_lake(tmp_path)
    Surgery(lake.root, 4).write(root_path(1), bomb("empty texts", "lz4"))
    code = (
        "import resource, sys\n"
        "from trinitylake_core import CorruptNode, Lakehouse\n"
        "used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n"
        "    Lakehouse.open(sys.argv[1])\n"
        "except CorruptNode as error:\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used)\n"
    )
    run = subprocess.run([sys.executable, "-c", code, lake.root], capture_output=True, text=True, check=True)
    assert 64 << 10 > int(run.stdout)


@pytest.mark.parametrize("codec", ["lz4", "zstd", None])
def test_a_small_file_needs_a_close_look_unless_it_is_compressed_as_ours(codec: str | None) -> None:
    """LZ4 expands a byte to 255 bytes at the most, Zstandard without a bound."""
    small = bomb("one text", codec, 1000)
    begin = batches(small)[0][0]
    ours = all(small[begin + start : begin + end] == piece for start, end, piece in nodefile._ordinary())
    assert ours == (codec == "lz4")
    assert not nodefile.is_bomb(small)
    if codec == "zstd":
        large = bomb("one text", codec)
        assert nodefile.SMALL_BYTES > len(large)
        assert nodefile.is_bomb(large)


def test_a_run_of_leaves_with_a_bomb_is_not_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly empty leaves of a huge order compress too well; so they are not compressed."""
    leaf, order = Columns(pa.array(["C1"]), pa.array(["v1"])), 2_000_000
    assert not nodefile.is_bomb(leafbatch.encode_many(leaves_of([leaf]), ["p"], order, 1)[0])
    monkeypatch.setattr(leafbatch, "_MOST_ROWS", order * 2)
    compressed = leafbatch.encode_many(leaves_of([leaf]), ["p"], order, 1)
    assert nodefile.is_bomb(compressed[0])
    assert leafbatch.decode_many(compressed, ["p"], order) is None


@pytest.mark.parametrize("damage", [b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b"\0\0\0\0"])
def test_metadata_that_make_no_sense_are_no_other_error(tmp_path: Path, damage: bytes) -> None:
    """Four bytes anywhere: each file is read, or refused as damaged, whoever finds it first."""
    lake = filled(new_lake(tmp_path), tables=4)
    data = bytes(lake.root_node.data)
    for at in range(len(data) - 4):
        harmed = data[:at] + damage + data[at + 4 :]
        try:
            expanded_bytes(harmed, batches(harmed))
        except ValueError:
            with pytest.raises(CorruptNode):
                nodefile.decode(harmed, lake.root_node.path)


# -- what we write is never refused --------------------------------------------------------------------


def test_a_nearly_empty_node_of_a_huge_order_is_read(tmp_path: Path) -> None:
    """Two million rows of NULLs would compress too well."""
    made = Lakehouse.create((tmp_path / "l").as_uri(), order=2_000_000, node_file_max_size_bytes=2 << 30)
    with made.transaction() as txn:
        txn.create_namespace("a")
    assert ["a"] == list(reopened(made).namespaces())


def test_a_large_transaction_of_long_names_that_compress_well_is_read(tmp_path: Path) -> None:
    node = reopened(new_lake(tmp_path)).root_node.node
    count = 40_000
    node.buffer.keys = [f"{'C===' + 'x' * 3000}{number:08}" for number in range(count)]
    node.buffer.values, node.buffer.txns = [None] * count, ["t" * 36] * count
    data = bytes(nodefile.encode(node, 4))
    assert not nodefile.is_bomb(data)
    assert node.buffer.keys == nodefile.decode(data, "p").buffer.keys
