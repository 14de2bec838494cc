"""Pictures: PNG, transparent, small, and bounded in what they read."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest

from dagster_project.metadata import pictures
from pipelines.reports.sketch import WIDTH, Strip, sketch
from pipelines.tables_health import TableHealth
from trinitylake_core import Lakehouse

PNG = b"\x89PNG\r\n\x1a\n"


def image(value: dg.MarkdownMetadataValue) -> bytes:
    """Return the bytes of a picture."""
    head, _, data = str(value.md_str).partition("data:image/png;base64,")
    assert head.startswith("![")
    return base64.b64decode(data.removesuffix(")"))


def test_a_sketch_has_every_level_and_counts_what_waits(lake: Lakehouse) -> None:
    strips = sketch(lake)
    stats = lake.stats()
    assert list(range(stats.height or 0, -1, -1)) == [strip.height for strip in strips]
    assert stats.messages == sum(strip.messages for strip in strips)
    assert all(strip.complete for strip in strips)
    assert all(0 <= fill <= 1 for strip in strips for fill in strip.fill)


def test_a_sketch_reads_no_more_than_it_shows(lake: Lakehouse) -> None:
    cold = Lakehouse.open(lake.root)
    before = cold.storage.counts.requests()
    strips = sketch(cold, width=3)
    assert max(len(strip.fill) for strip in strips) == 3
    assert not strips[-1].complete
    whole = sketch(lake)
    assert [len(strip.fill) for strip in whole] == [strip.nodes for strip in whole]
    assert all(0.5 < few.nodes / all_.nodes < 2 for few, all_ in zip(strips, whole, strict=True))
    assert cold.storage.counts.requests() - before <= 3 * (len(strips) - 1)


def test_pictures_are_small_and_have_no_background(lake: Lakehouse) -> None:
    """Colour type 6: with transparency, so that the page shines through."""
    strips = sketch(lake)
    drawn = [pictures.trees([("now", strips)]), pictures.trees([("a", strips), ("b", strips[1:])])]
    drawn.append(pictures.timeline(list(lake.history())))
    odd = [TableHealth(f"sales.$\\frac{{{number}$", "MANAGED", bytes=9, old_bytes=number) for number in range(20)]
    drawn += [pictures.tables(odd), pictures.tables([replace(odd[0], table="n" * 200)])]
    drawn.append(pictures.trees([("a crowd", [replace(strips[0], fill=[0.5] * 80, debt=[0.1] * 80)])]))
    for each in drawn:
        data = image(each)
        assert (PNG, 6) == (data[:8], data[25])
        assert len(data) < 200_000


def test_a_picture_of_any_tree_has_as_many_marks_as_a_page_can_show(
    lake: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10, 1,000 and 100,000 nodes: bars for each, then outlines; the size on the page depends on the height alone."""
    drawn: list[Any] = []
    monkeypatch.setattr(pictures, "_draw_markdown", lambda figure, _: drawn.append(figure))
    root = sketch(lake)[0]

    def level(height: int, nodes: int) -> Strip:
        shown = min(nodes, WIDTH)
        return Strip(height, (0.7,) * shown, (0.2,) * shown, 5, complete=shown == nodes, nodes=nodes)

    trees = [[level(1, 1), level(0, 9)], [level(1, 20), level(0, 980)], [level(1, 1_500), level(0, 98_500)]]
    for leaves, strips in zip(("9 nodes", "200 of about 980 nodes", "200 of about 98,000 nodes"), trees, strict=True):
        pictures.trees([("a tree", [root, *strips])])
        figure = drawn.pop()
        axes = figure.get_axes()
        assert all(len(each.patches) + len(each.lines) <= 2 * 60 for each in axes)
        assert leaves in axes[-1].get_ylabel()
        assert (6.8, 3.55) == tuple(figure.get_size_inches().round(2))
