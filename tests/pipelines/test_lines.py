"""Lines of files in blocks: each line in exactly one block, whole, wherever the blocks are cut."""

from __future__ import annotations

import gzip
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.reach.listing import expand_gzip
from pipelines.source import lines
from pipelines.source.lines import Block, TextPlace, cut_into_blocks, describe_place, describe_places, find_text_files
from trinitylake_core.errors import InvalidInput
from trinitylake_core.storage import Storage, open_storage

TEXTS = st.lists(st.sampled_from([b"", b"a", b"bc", b" ", b"\xc3\xa9\xf0\x9f\x99\x82", b"x" * 30]), max_size=12)


def read(storage: Storage, name: str, size: int, block_bytes: int) -> list[tuple[int, bytes]]:
    return [
        (place.offset, line)
        for block in cut_into_blocks([(name, size)], block_bytes)
        for place, line in lines.read_lines(storage, block)
    ]


@given(TEXTS, st.booleans(), st.integers(1, 40))
def test_each_line_is_in_one_block(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], ends: bool, block_bytes: int
) -> None:
    data = b"\n".join(parts) + (b"\n" if ends else b"")
    storage = open_storage(f"file://{tmp_path_factory.getbasetemp()}/lines", {"durable": False})
    storage.replace("f.jsonl", data)
    expected = [part for part in data.split(b"\n") if part.strip()]
    found = read(storage, "f.jsonl", len(data), block_bytes)
    assert expected == [line for _, line in found]
    assert all(data[at : at + len(line)] == line for at, line in found)


def test_a_line_longer_than_blocks_and_steps_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_STEP_BYTES", 7)
    data = b"a\n" + b"x" * 1000 + b"\nb"
    (tmp_path / "f.jsonl").write_bytes(data)
    storage = open_storage(tmp_path.as_uri())
    assert [b"a", b"x" * 1000, b"b"] == [line for _, line in read(storage, "f.jsonl", len(data), 10)]
    monkeypatch.setattr(lines, "LINE_MAX_BYTES", 500)
    with pytest.raises(InvalidInput, match=r"f\.jsonl has a line longer than"):
        read(storage, "f.jsonl", len(data), 10)


def test_a_compressed_file_is_one_block(tmp_path: Path) -> None:
    data = gzip.compress(b"a\n\nb")
    (tmp_path / "f.jsonl.gz").write_bytes(data)
    storage = open_storage(tmp_path.as_uri())
    assert [(0, b"a"), (3, b"b")] == read(storage, "f.jsonl.gz", len(data), 1)
    assert "f.jsonl.gz, line 3" == describe_place(storage, TextPlace("f.jsonl.gz", 3))
    (tmp_path / "f.jsonl.gz").write_bytes(data[:-5])
    with pytest.raises(InvalidInput, match="cut short"):
        read(storage, "f.jsonl.gz", len(data) - 5, 1)


def test_a_block_costs_one_request_and_a_little_where_it_ends(tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_bytes(b"0123456789\n" * 100)
    storage = open_storage(tmp_path.as_uri())
    assert 50 == len(list(lines.read_lines(storage, Block("f.jsonl", 0, 545, 1100))))
    assert (2, 1100) == (storage.counts.requests(), storage.counts.bytes_read)


def test_files_of_a_directory(tmp_path: Path) -> None:
    for name in ("b/two.jsonl", "a.json", "README.md", "c.ndjson.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    _, found = find_text_files(tmp_path.as_uri(), {}, (".jsonl", ".json", ".ndjson"))
    assert [("a.json", 1), ("b/two.jsonl", 1), ("c.ndjson.gz", 1)] == found
    assert [("a.json", 1)] == find_text_files(str(tmp_path / "a.json"), {}, (".json",))[1]
    with pytest.raises(InvalidInput, match=r"nothing to read at .*no \.csv"):
        find_text_files(str(tmp_path), {}, (".csv",))
    with pytest.raises(InvalidInput, match=r"there is no file .*gone\.json"):
        find_text_files(str(tmp_path / "gone.json"), {}, (".json",))


def test_places_are_found_in_one_reading(tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_bytes(b"a\n\nbb\nc\n")
    with gzip.open(tmp_path / "g.jsonl.gz", "wb") as packed:
        packed.write(b"a\n\nbb\nc\n")
    storage = open_storage(tmp_path.as_uri())
    places = [TextPlace(file, offset) for offset in (6, 0, 3) for file in ("f.jsonl", "g.jsonl.gz")]
    before = storage.counts.snapshot()
    assert [f"{place.file}, line {({0: 1, 3: 3, 6: 4})[place.offset]}" for place in places] == (
        describe_places(storage, places)
    )
    assert (storage.counts - before).requests() <= 3


# -- compressed text is unpacked whole, or refused: never more of it than fits into memory -------------


def test_all_members_are_unpacked() -> None:
    """As `gzip` and `pigz` write them, padded or not."""
    data = gzip.compress(b"one ") + gzip.compress(b"two") + b"\0" * 512
    assert b"one two" == expand_gzip(data, "f.gz")
    assert b"" == expand_gzip(gzip.compress(b""), "f.gz")


DAMAGED = {
    "garbage": b"garbage",
    "cut short": gzip.compress(b"whole")[:-5],
    "garbage behind": gzip.compress(b"one") + b"garbage",
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED.keys())
def test_what_is_damaged_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"f\.gz is not a valid gzip file, or is cut short"):
        expand_gzip(data, "f.gz")


def test_a_bomb_is_refused_before_it_is_in_memory() -> None:
    """Half a megabyte that would become half a gigabyte."""
    bomb = gzip.compress(bytes(512 << 20), 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidInput, match="more than 1 MiB"):
        expand_gzip(bomb, "f.gz", 1 << 20)
    assert 64 << 10 > resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


def test_the_bound_is_exact() -> None:
    assert b"abc" == expand_gzip(gzip.compress(b"abc"), "f.gz", 3)
    with pytest.raises(InvalidInput):
        expand_gzip(gzip.compress(b"abcd"), "f.gz", 3)
    with pytest.raises(InvalidInput):
        expand_gzip(gzip.compress(b"ab") + gzip.compress(b"cd"), "f.gz", 3)
