"""Node files: what is written is read; what is damaged or hostile is refused, never believed, and never a crash."""

from __future__ import annotations

import contextlib
import importlib
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.lakes import FAST, compacted, content, filled, new_lake
from tests.support.surgery import ABSENT, RIGHT, WRONG, Columns, Surgery, node_file
from trinitylake_core import Corrupt, CorruptNode, Lakehouse, ObjectNotFound, spec
from trinitylake_core.locations import node_path
from trinitylake_core.tree import nodefile
from trinitylake_core.tree.checksum import checksum_of
from trinitylake_core.tree.node import Messages, Node
from trinitylake_core.tree.nodefile import decode_head
from trinitylake_core.tree.noderows import NodeRows
from trinitylake_core.tree.search import lookup

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
KEYS = TEXT.map(lambda text: "C===" + text)
PATHS = st.text("abcdefgh01", min_size=1, max_size=8)
MESSAGES = st.lists(st.tuples(KEYS, st.none() | TEXT, TEXT.filter(bool)), max_size=8).map(Messages.of)


def content_of(node: Node) -> tuple[Any, ...]:
    """Return everything a node says."""
    return (
        node.keys,
        node.values,
        node.children,
        list(node.buffer),
        node.system,
        node.height,
        node.subtree_keys,
        node.subtree_messages,
        node.child_keys,
        node.child_messages,
        node.table_rows,
        node.canonical,
    )


@st.composite
def nodes(draw: st.DrawFn) -> tuple[Node, int]:
    """Draw a node that the writer may write, and an order that it fits."""
    keys = sorted(draw(st.sets(KEYS, max_size=6)))
    children = draw(st.lists(PATHS, min_size=len(keys) + 1, max_size=len(keys) + 1, unique=True) | st.just([]))
    counts = st.none() | st.lists(st.integers(0, 10**12), min_size=len(children), max_size=len(children))
    node = Node(
        keys,
        draw(st.lists(TEXT, min_size=len(keys), max_size=len(keys))),
        children,
        draw(MESSAGES),
        draw(st.dictionaries(st.sampled_from(["version", "summary", "unknown", "größe"]), TEXT, max_size=3)),
        draw(st.none() | st.integers(0, 60)),
        draw(st.none() | st.integers(0, 10**12)),
        draw(st.none() | st.integers(0, 10**12)),
        draw(counts) if children else None,
        draw(counts) if children else None,
    )
    return node, max(3, len(keys) + 1 + draw(st.integers(0, 3)))


@given(nodes())
def test_a_file_is_the_same_whether_or_not_pandas_is_loaded(drawn: tuple[Node, int]) -> None:
    """Columns are made in two ways."""
    found = []
    for loaded in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "pandas", importlib.import_module("pandas"))
            if not loaded:
                patch.delitem(sys.modules, "pandas")
            found.append(bytes(nodefile.encode(*drawn)))
    assert found[0] == found[1]


@given(nodes())
def test_what_is_written_is_read(drawn: tuple[Node, int]) -> None:
    node, order = drawn
    node.table_rows = order
    read = nodefile.decode(bytes(nodefile.encode(node, order)), "p")
    assert content_of(node) == content_of(read)
    assert read.checksummed


@given(nodes(), KEYS)
@example(
    (Node(["C===a"], [""], [], Messages.of([("C===bb", "1", "t"), ("C===b", None, "t"), ("C===bb", "2", "t")])), 3),
    "C===b",
)
@example((Node(["C===a"], [""], [], Messages.of([("C===é", None, "t"), ("C===xC===é", "1", "t")])), 3), "C===")
def test_a_search_in_rows_finds_what_a_search_in_lists_finds(drawn: tuple[Node, int], other: str) -> None:
    node, order = drawn
    data = bytes(nodefile.encode(node, order))
    for key in [*node.keys, *node.buffer.keys, other]:
        read = nodefile.decode(data, "p")
        assert (read.find(key), read.message(key)) == (node.find(key), node.message(key))
        row, index = node.position(key), node.child_index(key)
        if node.message(key) is None:
            below = (False, node.children[index]) if node.children else (True, None)
            assert read.find(key) == (below if row is None else (True, node.values[row]))
        for _ in range(20):  # after some searches the rows become lists
            assert read.message(key) == node.message(key)
        assert (read.find(key), content_of(read)[:4]) == (node.find(key), content_of(node)[:4])


def test_a_lookup_makes_no_list_of_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of no level: a search goes through the bytes that were read."""
    lake = filled(new_lake(tmp_path, order=4), 60)
    compacted(lake)
    asked: list[str] = []
    monkeypatch.setattr(NodeRows, "list_of", lambda _, name: asked.append(name))
    fresh = Lakehouse.open(lake.storage.root, storage_options=FAST)
    assert (fresh.root_node.node.height or 0) > 1
    assert lookup(fresh.nodes, fresh.root_node.node, fresh.codec.table("ns0", "t000")) is not None
    assert asked == []


@given(nodes(), st.integers(1, 9))
def test_batches_and_compression_do_not_matter(drawn: tuple[Node, int], batches: int) -> None:
    """A reader takes any number of record batches, compressed or not, under the same checksum."""
    node, order = drawn
    written = bytes(nodefile.encode(node, order))
    with pa.ipc.open_file(pa.py_buffer(written)) as reader:
        table = reader.read_all()
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    assert content_of(nodefile.decode(written, "p")) == content_of(
        nodefile.decode(node_file(columns, batches=batches), "p")
    )


@given(nodes())
def test_a_head_says_what_its_node_says_without_the_messages(drawn: tuple[Node, int]) -> None:
    """Whether the key table is full or not, and whether there is a write buffer or not."""
    node, order = drawn
    data = bytes(nodefile.encode(node, order))
    whole, (head, values) = nodefile.decode(data, "p"), decode_head(data, "p")
    assert (whole.buffer.values, Messages()) == (values.to_pylist(), head.buffer)
    whole.buffer = Messages()
    assert content_of(whole) == content_of(head)
    assert (whole.checksummed, whole.nbytes, whole.named) == (head.checksummed, head.nbytes, head.named)


def test_many_messages_share_the_names_of_their_transactions() -> None:
    txns = [f"t{number % 3}" for number in range(5000)]
    node = Node(buffer=Messages(["C===k"] * 5000, ["v"] * 5000, txns), height=0)
    read = nodefile.decode(bytes(nodefile.encode(node, 4)), "p").buffer
    assert (txns, 3) == (read.txns, len(set(map(id, read.txns))))


SAMPLE = Node(
    ["C===a", "C===b", "C===größe"],
    ["0000/0000/0000/00000000-x", "p2", "p3"],
    ["_a", "_b", "_c", "_d"],
    Messages(["C===aa", "C===b"], ["v", None], ["t1", "t2"]),
    {"created_at_millis": "1", "version": "7", "lakehouse_def": "_d", "txn": "t2"},
    1,
    11,
    5,
    [2, 3, 3, 0],
    [1, 1, 1, 0],
)
FILE = bytes(nodefile.encode(SAMPLE, 5))
EXPECTED = content_of(nodefile.decode(FILE, "p"))


def outcome(data: bytes) -> tuple[Any, ...] | None:
    """Return what a file says, or ``None`` where it is refused; nothing else may happen."""
    try:
        return content_of(nodefile.decode(data, "p"))
    except CorruptNode:
        return None


def outcome_of_head(data: bytes) -> tuple[Any, ...] | None:
    """Return what the head of a file and its messages say, as :func:`outcome` does."""
    try:
        head, values = decode_head(data, "p")
    except CorruptNode:
        return None
    return content_of(head), values.to_pylist()


def test_a_damaged_head_is_refused_where_its_node_is() -> None:
    expected, wrong = outcome_of_head(FILE), []
    for position in range(len(FILE)):
        damaged = FILE[:position] + bytes([FILE[position] ^ 255]) + FILE[position + 1 :]
        said = outcome_of_head(damaged)
        if said not in (None, expected) or (said is None) != (outcome(damaged) is None):
            wrong.append(position)
    assert [] == wrong


def test_no_single_changed_byte_is_believed() -> None:
    """Every byte of a file, each bit of it: refused, or the change does not matter."""
    wrong = []
    for position in range(len(FILE)):
        for flip in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            damaged = FILE[:position] + bytes([FILE[position] ^ flip]) + FILE[position + 1 :]
            if outcome(damaged) not in (None, EXPECTED):
                wrong.append((position, flip))
    assert [] == wrong


def test_no_truncated_file_is_believed() -> None:
    """Cut at any byte, from either end."""
    assert [] == [cut for cut in range(len(FILE)) if outcome(FILE[:cut]) is not None]
    assert [] == [cut for cut in range(1, len(FILE)) if outcome(FILE[cut:]) is not None]


@given(st.data())
def test_no_damage_of_several_bytes_is_believed(data: st.DataObject) -> None:
    """Bytes changed, cut out, doubled, or zeroed: what a disk or a network does."""
    start = data.draw(st.integers(0, len(FILE) - 1))
    stop = data.draw(st.integers(start, min(len(FILE), start + 64)))
    middle = data.draw(
        st.binary(max_size=64) | st.just(b"\0" * (stop - start)) | st.just(FILE[start:stop] * 2) | st.just(b"")
    )
    assert outcome(FILE[:start] + middle + FILE[stop:]) in (None, EXPECTED)


@given(st.binary(max_size=400))
@example(b"")
@example(b"ARROW1\0\0")
@example(b"ARROW1\0\0" + b"\0" * 20 + b"ARROW1")
@example(b"ARROW1\0\0" + b"\xff" * 8 + b"\x7f\xff\xff\xffARROW1")
def test_garbage_is_refused(data: bytes) -> None:
    assert outcome(data) is None


def test_damage_allocates_nothing_huge() -> None:
    """A flipped bit in a length must not cost gigabytes of resident memory."""
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for position in range(len(FILE)):
        outcome(FILE[:position] + b"\x7f" + FILE[position + 1 :])
        outcome(FILE[:position] + b"\xff\xff\xff\x0f" + FILE[position + 4 :])
    assert 200_000 > resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


# -- hostile files: well-formed Arrow, with a checksum that matches ------------------------------------


def leaf_columns(**system: str) -> Columns:
    """Return the columns of a small leaf of order 4."""
    rows = {spec.N_KEYS: "1", **system}
    return {
        spec.KEY: [*rows, None, "C===a", None, None],
        spec.PVALUE: [*rows.values(), None, "v", None, None],
        spec.PNODE: [None] * (len(rows) + 4),
        spec.TXN: [None] * (len(rows) + 4),
    }


@pytest.mark.parametrize(
    "count", ["9" * 18, "9" * 5000, "-1", "1.0", "\u0661", "", " 1", "1e3", "0x1", str(2**63), str(2**64 + 1)]
)
@pytest.mark.parametrize("row", [spec.N_KEYS, spec.HEIGHT, spec.SUBTREE_KEYS, spec.CHILD_KEYS])
def test_a_hostile_number_is_refused_or_harmless(row: str, count: str) -> None:
    """Not a number, or one that no table has: no crash, no loop, no allocation by it."""
    data = node_file(leaf_columns(**{row: count}))
    if row == spec.N_KEYS or not (count.isascii() and count.isdecimal()) or len(count) > 4000:
        with pytest.raises(CorruptNode):
            nodefile.decode(data, "p")
    else:
        outcome(data)


def test_a_node_without_the_number_of_its_keys_is_refused() -> None:
    columns = leaf_columns()
    for column in columns.values():
        del column[0]
    with pytest.raises(CorruptNode, match="n_keys"):
        nodefile.decode(node_file(columns, ABSENT), "p")


@pytest.mark.parametrize(
    "pointer", ["../x", "a/../x", "/etc/passwd", "s3://bucket/x", "file:///x", "C:\\x", "a//b", "./a", "a/", "", "a\0b"]
)
def test_a_pointer_that_leads_outside_is_refused(pointer: str) -> None:
    columns = leaf_columns()
    columns[spec.PNODE][1:3] = [node_path(), pointer]
    with pytest.raises(CorruptNode) as raised:
        nodefile.decode(node_file(columns), "p")
    assert "I10" == raised.value.invariant
    assert "p" == raised.value.path


def test_a_child_that_stands_twice_is_refused() -> None:
    columns = leaf_columns()
    columns[spec.PNODE][1:3] = [node_path()] * 2
    with pytest.raises(CorruptNode, match="twice"):
        nodefile.decode(node_file(columns), "p")


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_string(), pa.int64(), pa.dictionary(pa.int8(), pa.string())])
def test_columns_of_another_type_are_refused(kind: pa.DataType) -> None:
    sink = pa.BufferOutputStream()
    schema = pa.schema([pa.field(name, kind) for name in spec.COLUMNS])
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(schema.empty_table())
    assert outcome(sink.getvalue().to_pybytes()) is None


@pytest.mark.parametrize("checksum", [RIGHT, WRONG, ABSENT])
@pytest.mark.parametrize("gone", spec.COLUMNS)
def test_a_node_has_the_four_columns(gone: str, checksum: str) -> None:
    """A renamed column must not read as an absent one: that would turn an inner node into a leaf."""
    columns = {("other" if name == gone else name): column for name, column in leaf_columns().items()}
    assert outcome(node_file(columns, checksum)) is None


class _Buffers:
    """An Arrow array with other offsets, which Arrow itself would not make."""

    def __init__(self, array: Any, offsets: bytes) -> None:
        self._array, self._offsets = array, offsets
        self.null_count = array.null_count

    def __len__(self) -> int:
        return len(self._array)

    def buffers(self) -> list[Any]:
        validity, _, text = self._array.buffers()
        return [validity, self._offsets, text]


@pytest.mark.parametrize("value", [-1, 2**31 - 1, -(2**31), 10_000, 3])
@pytest.mark.parametrize("row", [1, 2, 5])
def test_hostile_offsets_under_a_matching_checksum_are_refused(value: int, row: int) -> None:
    """Offsets into the text that run backwards or out of it would read foreign memory."""
    arrays = [pa.array(column, pa.string()) for column in leaf_columns().values()]
    offsets = arrays[0].buffers()[1]
    hostile = bytearray(offsets.to_pybytes()[: 4 * (len(arrays[0]) + 1)])
    before = bytes(hostile)
    struct.pack_into("<i", hostile, 4 * row, value)
    data = node_file(leaf_columns())
    assert 1 == data.count(before)
    digest = checksum_of([_Buffers(arrays[0], bytes(hostile)), *arrays[1:]])  # type: ignore[list-item]
    data = data.replace(checksum_of(arrays), digest).replace(before, bytes(hostile))
    found = outcome(data)
    assert found is None or value == 3, "an offset inside the text is another text, and nothing worse"


def test_text_that_is_not_utf8_is_refused() -> None:
    arrays = [pa.array(column, pa.string()) for column in leaf_columns().values()]
    bad = pa.array([None if v is None else b"\xff\xfe" for v in leaf_columns()[spec.PVALUE]], pa.binary())
    arrays[1] = pa.Array.from_buffers(pa.string(), len(bad), bad.buffers())
    schema = pa.schema(
        [pa.field(name, pa.string()) for name in spec.COLUMNS],
        metadata={spec.CHECKSUM_METADATA: checksum_of(arrays)},
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    assert outcome(sink.getvalue().to_pybytes()) is None


# -- hostile trees: every reading and writing method says Corrupt ---------------------------------------


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a lakehouse of four levels and return its directory."""
    lake = filled(new_lake(tmp_path_factory.mktemp("template")), tables=120, changes=8)
    assert 3 == lake.stats().height
    return Surgery(lake.root, 4).directory


@pytest.fixture
def lake(template: Path, tmp_path: Path) -> Lakehouse:
    """Return a handle of a fresh copy."""
    shutil.copytree(template, tmp_path / "lake")
    return Lakehouse.open((tmp_path / "lake").as_uri(), storage_options=FAST)


def circle_with_heights(surgery: Surgery, version: int) -> None:
    path = surgery.inner(version)
    with surgery.node(path) as node:
        node.children[:] = [path, *node.children[1:]]


def circle_without_heights(surgery: Surgery, version: int) -> None:
    inner = surgery.inner(version)
    for path, found in surgery.tree(version):
        with surgery.node(path) as node:
            node.height = None
            if node.children and found.height == 1:
                node.children[:] = [inner, *node.children[1:]]


def leaf_for_inner(surgery: Surgery, version: int) -> None:
    surgery.copy_node(surgery.leaf(version), surgery.inner(version))


def missing_node(surgery: Surgery, version: int) -> None:
    for path, node in surgery.tree(version)[1:]:
        if node.is_leaf:
            surgery.remove(path)


@pytest.mark.parametrize("hostile", [circle_with_heights, circle_without_heights, leaf_for_inner, missing_node])
def test_a_hostile_tree_is_a_clear_error_to_every_reader_and_writer(lake: Lakehouse, hostile: Any) -> None:
    """Whatever walks the tree ends, with ``Corrupt``."""
    hostile(Surgery(lake.root, 4), lake.version)
    again = Lakehouse.open(lake.root, storage_options=FAST)
    readers = [
        lambda: list(again.objects()),
        again.digest,
        lambda: list(again.diff(0, again.version)),
        lambda: list(again.diff(again.version, 0)),
        lambda: compacted(again),
    ]
    for reader in readers:
        with pytest.raises(Corrupt):
            reader()
    with pytest.raises((Corrupt, ObjectNotFound)):  # one path alone cannot show that it leads astray
        [again.table(f"ns{number % 3}", f"t{number:03}") for number in range(120)]
    assert {each.invariant for each in again.check()} & {"I8", "I10"}


def test_bit_rot_anywhere_in_a_lakehouse_never_changes_what_it_says(lake: Lakehouse) -> None:
    """One byte of each node file in turn: reading it all gives the same content or ``Corrupt``."""
    surgery = Surgery(lake.root, 4)
    expected = content(lake)
    for number, (path, _) in enumerate(surgery.tree(lake.version)):
        data = surgery.read(path)
        position = (number * 7919 + 100) % len(data)
        surgery.write(path, data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :])
        with contextlib.suppress(Corrupt):
            assert expected == content(Lakehouse.open(lake.root, storage_options=FAST))
        surgery.write(path, data)
    assert expected == content(Lakehouse.open(lake.root, storage_options=FAST))


def test_a_node_with_too_many_keys_is_refused() -> None:
    """Arrow does not survive a column of fewer than no rows."""
    node = Node(["C1", "C2", "C3"], ["u", "v", "w"])
    with pytest.raises(ValueError, match="at most 2 keys"):
        nodefile.encode(node, 3)
