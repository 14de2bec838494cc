"""Pictures of trees of about 10, 1,000 and 100,000 nodes for the pages, on white and on black: docs/images/tree-*.png.

Loads three lakehouses into a temporary directory, with few keys per node, and draws each as `tree_health` does::

    .venv/bin/python scripts/trees.py
"""

from __future__ import annotations

import base64
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Final

from PIL import Image

from dagster_project.metadata import pictures
from pipelines import load
from pipelines.reports.sketch import sketch
from trinitylake_core import Lakehouse

INTO: Final = Path(__file__).absolute().parent.parent / "docs" / "images"
SIZES: Final = {"10": (120, 16), "1000": (3_000, 4), "100000": (300_000, 4)}
"""Tables, and keys per node, by the number of nodes."""
_TARGET: Final = 16_384
_OPTIONS: Final = {"durable": False}
BACKGROUNDS: Final = {"light": "#ffffff", "dark": "#0f172a"}


def main(names: list[str]) -> int:
    """Make the pictures of some sizes, or of all; return the exit code."""
    for name in names or SIZES:
        with tempfile.TemporaryDirectory() as scratch:
            lake = loaded(Path(scratch), *SIZES[name])
            picture = pictures.trees([(f"{lake.stats().objects:,} objects", sketch(lake))])
            save(name, base64.b64decode(str(picture.md_str).partition("base64,")[2].removesuffix(")")))
    return 0


def loaded(directory: Path, tables: int, order: int) -> Lakehouse:
    """Return a lakehouse of so many tables, a few of them changed since it was compacted."""
    root = (directory / "lake").as_uri()
    lake = Lakehouse.create(root, order=order, node_file_max_size_bytes=_TARGET, storage_options=_OPTIONS)
    lines = [{"create_namespace": {"namespace": "sales"}}]
    lines += [{"create_table": {"namespace": "sales", "name": f"t{number:06}"}} for number in range(tables)]
    source = directory / "objects.jsonl"
    source.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    load.run(lake, source.as_uri(), load.Config(engine="local"))
    with lake.refresh().transaction() as txn:
        for number in range(0, tables, tables // 20):
            txn.alter_table("sales", f"t{number:06}", properties={"owner": "emea"})
    return lake.refresh()


def save(name: str, data: bytes) -> None:
    """Save a picture on both backgrounds."""
    drawn = Image.open(io.BytesIO(data)).convert("RGBA")
    for mode, colour in BACKGROUNDS.items():
        page = Image.new("RGBA", drawn.size, colour)
        page.alpha_composite(drawn)
        path = INTO / f"tree-{name}-{mode}.png"
        page.convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(path, optimize=True)
        print(path)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
