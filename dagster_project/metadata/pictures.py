"""Pictures of trees and histories: PNG in Markdown, readable in light and dark mode."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import dagster as dg

from pipelines.summary import utc
from pipelines.tables_health import TableHealth
from pipelines.trees.sketch import Strip
from trinitylake_core import VersionInfo

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Mid-tones, so that they stand out on black and on white.
INK: Final = "#6f7887"
KEYS: Final = "#4c8bf5"
DEBT: Final = "#f0912e"
GOOD: Final = "#2fa876"
BAD: Final = "#e5484d"
_MARKS: Final = {
    "compact": ("^", KEYS, "compaction"),
    "snapshot": ("D", GOOD, "snapshot"),
    "rollback": ("v", BAD, "rollback"),
    "restore": ("v", DEBT, "restore"),
}
_KEYS_LABEL: Final = "keys, as a share of those that fit"
_DEBT_LABEL: Final = "write buffer, as a share of the target size"
_CROWD: Final = 60
"""From so many nodes in a row on their bars would touch."""
_DPI: Final = 110
_MEBIBYTE: Final = 1 << 20
_LONG: Final = 50
"""So many characters of a name fit beside its bar."""
_WIDEST: Final = 8.7  # inches; wider pictures are cut off by Dagster in a window of 1280 pixels


def trees(pictured: Sequence[tuple[str, Sequence[Strip]]]) -> dg.MarkdownMetadataValue:
    """Return a picture of trees side by side, such as before and after: a pair of bars per node, in key order.

    Its size depends on the height of the trees alone; of a level with many nodes it shows a sample, with a note.
    """
    rows = max(len(strips) for _, strips in pictured)
    figure = _figure(min(5.2 * len(pictured) + 1.6, _WIDEST), 0.75 * rows + 1.3)
    figure.set_layout_engine("constrained", wspace=0.05)
    grid = figure.subplots(rows, len(pictured), squeeze=False)
    scale = 1.0
    for _, strips in pictured:
        for strip in strips:
            scale = max(scale, *strip.debt)
    for column, (title, strips) in enumerate(pictured):
        axes_of_column = [row[column] for row in grid]
        _draw_tree(axes_of_column, title, strips, scale)
    handles, labels = grid[-1][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, labelcolor=INK, fontsize=9)
    return _draw_markdown(figure, "; ".join(title for title, _ in pictured))


def _draw_tree(axes: Sequence[Axes], title: str, strips: Sequence[Strip], scale: float) -> None:
    """Draw the levels of a tree from the bottom up: a lower tree leaves the upper rows empty."""
    above = len(axes) - len(strips)
    for empty in axes[:above]:
        empty.set_axis_off()
    for level, strip in zip(axes[above:], strips, strict=True):
        _draw_strip(level, strip, scale)
    axes[above].set_title(title, color=INK, fontsize=11)


def _draw_strip(axes: Axes, strip: Strip, scale: float) -> None:
    count = len(strip.fill)
    slot = 1.0 / count
    if count < _CROWD:  # a pair of bars per node
        width = slot * 0.86 / (2 if any(strip.debt) else 1)
        aside = width / 2 if any(strip.debt) else 0.0
        centres = [(index + 0.5) * slot for index in range(count)]
        axes.bar([x - aside for x in centres], strip.fill, width, color=KEYS, label=_KEYS_LABEL)
        axes.bar([x + aside for x in centres], strip.debt, width, color=DEBT, label=_DEBT_LABEL)
    else:  # two outlines over each other: bars side by side would be one solid block
        edges = [index * slot for index in range(count + 1)]
        axes.stairs(strip.fill, edges, fill=True, color=KEYS, alpha=0.25)
        axes.stairs(strip.fill, edges, color=KEYS, linewidth=0.9, label=_KEYS_LABEL)
        axes.stairs(strip.debt, edges, fill=True, color=DEBT, alpha=0.9, label=_DEBT_LABEL)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, scale)
    axes.set_xticks([])
    axes.set_yticks([0, 1], ["0", "100 %"])
    two_digits = round(strip.nodes, -max(0, len(str(strip.nodes)) - 2))
    many = "" if strip.complete else f" of about {two_digits:,}"
    nodes = f"{count}{many} node{'s' if count != 1 else ''}"
    name = "leaves" if strip.height == 0 else f"height {strip.height}"
    text = f"{name}\n{nodes}\n{strip.messages:,} buffered{'' if strip.complete else ' in those'}"
    axes.set_ylabel(text, rotation=0, ha="right", va="center", fontsize=8, color=INK)
    _plain(axes)


def timeline(versions: Sequence[VersionInfo]) -> dg.MarkdownMetadataValue:
    """Return a picture of the history: objects, buffered messages and operations over time."""
    from matplotlib import dates  # noqa: PLC0415 - as below

    shown = sorted(versions, key=lambda each: each.version)
    figure = _figure(_WIDEST, 4.2)
    top, bottom = figure.subplots(2, 1, sharex=True)
    times = [each.created_at for each in shown]
    top.step(times, [each.objects or 0 for each in shown], where="post", color=KEYS)
    top.set_ylabel("objects", color=INK, fontsize=9)
    bottom.fill_between(times, [each.messages or 0 for each in shown], step="post", color=DEBT, alpha=0.8)
    bottom.set_ylabel("buffered messages", color=INK, fontsize=9)
    for operation, (marker, colour, label) in _MARKS.items():
        marked = [each for each in shown if each.operation == operation]
        if marked:
            heights = [each.objects or 0 for each in marked]
            top.plot([each.created_at for each in marked], heights, marker, color=colour, label=label)
    if top.get_legend_handles_labels()[0]:
        top.legend(frameon=False, labelcolor=INK, fontsize=9)
    first, last = shown[0], shown[-1]
    span = f"version {first.version}, {utc(first.created_at)}, to version {last.version}, {utc(last.created_at)}"
    bottom.set_xlabel(span, color=INK, fontsize=9)
    for axes in (top, bottom):
        axes.set_ylim(0, 1.15 * max(axes.dataLim.y1, 1))  # markers at the upper edge are not cut off
        axes.margins(x=0.02)
        _plain(axes)
    locator = dates.AutoDateLocator()  # type: ignore[no-untyped-call]
    bottom.xaxis.set_major_locator(locator)
    bottom.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    bottom.xaxis.get_offset_text().set_color(INK)
    return _draw_markdown(figure, span)


def tables(measured: Sequence[TableHealth]) -> dg.MarkdownMetadataValue:
    """Return a picture of tables: a bar each, of what the newest snapshot needs and what only old ones keep."""
    figure = _figure(_WIDEST, 0.28 * len(measured) + 1.1)
    axes = figure.subplots()
    places = range(len(measured))
    names = [each.table if len(each.table) <= _LONG else f"...{each.table[-_LONG:]}" for each in measured]
    live, old = ([getattr(each, name) / _MEBIBYTE for each in measured] for name in ("bytes", "old_bytes"))
    axes.barh(places, live, 0.6, color=KEYS, label="the newest snapshot")
    axes.barh(places, old, 0.6, left=live, color=DEBT, label="old snapshots only")
    axes.set_yticks(places, names, parse_math=False)
    axes.set_ylim(len(measured) - 0.4, -0.6)  # the heaviest on top
    axes.set_xlabel("MiB", color=INK, fontsize=9)
    figure.legend(loc="outside upper right", ncols=2, frameon=False, labelcolor=INK, fontsize=9)
    _plain(axes)
    return _draw_markdown(figure, f"the {len(measured)} heaviest tables")


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure  # noqa: PLC0415 - takes half a second; loading definitions must be fast

    return Figure(figsize=(width, height), layout="constrained")


def _plain(axes: Axes) -> None:
    axes.patch.set_alpha(0)
    axes.tick_params(colors=INK, labelsize=8)
    for side, spine in axes.spines.items():
        spine.set_visible(side in {"left", "bottom"})
        spine.set_color(INK)


def _draw_markdown(figure: Figure, alternative: str) -> dg.MarkdownMetadataValue:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI, transparent=True)
    data = base64.b64encode(buffer.getvalue()).decode()
    return dg.MetadataValue.md(f"![{alternative}](data:image/png;base64,{data})")
