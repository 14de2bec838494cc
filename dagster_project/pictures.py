"""Pictures for people who would rather look than read: PNG in markdown, readable in light and dark mode."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Final

import dagster as dg
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from dagster_project.sketch import Strip
from trinitylake_core import VersionInfo

# In the middle between black and white, so that they stand out on either.
INK: Final = "#808a98"
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
_DPI: Final = 110
_MAX_TIMELINE: Final = 2000


def tree(strips: Sequence[Strip], title: str) -> dg.MarkdownMetadataValue:
    """Return a picture of one tree."""
    return trees([(title, strips)])


def trees(pictured: Sequence[tuple[str, Sequence[Strip]]]) -> dg.MarkdownMetadataValue:
    """Return a picture of trees side by side, such as before and after: a bar for each node, in key order."""
    rows = max(len(strips) for _, strips in pictured)
    figure = Figure(figsize=(5.2 * len(pictured) + 1.6, 0.75 * rows + 1.3), layout="constrained")
    axes = figure.subplots(rows, len(pictured), squeeze=False)
    scale = max(1.0, *(debt for _, strips in pictured for strip in strips for debt in strip.debt))
    for column, (title, strips) in enumerate(pictured):
        for row in range(rows):
            index = row - (rows - len(strips))
            if index < 0:
                axes[row][column].set_axis_off()
            else:
                _draw_strip(axes[row][column], strips[index], scale)
        axes[rows - len(strips)][column].set_title(title, color=INK, fontsize=11)
    handles = [axes[-1][0].bar([0], [0], color=colour, label=label)[0] for colour, label in _LEGEND]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, labelcolor=INK, fontsize=9)
    return _markdown(figure, "; ".join(title for title, _ in pictured))


_LEGEND: Final = ((KEYS, "keys, of those that fit"), (DEBT, "write buffer, of the target size of a node"))


def _draw_strip(axes: Axes, strip: Strip, scale: float) -> None:
    count = len(strip.fill)
    width = 0.86 / count if count < 80 else 1.0 / count
    centres = [(index + 0.5) / count for index in range(count)]
    axes.bar([x - width / 4 for x in centres], strip.fill, width / 2, color=KEYS)
    axes.bar([x + width / 4 for x in centres], strip.debt, width / 2, color=DEBT)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, scale)
    axes.set_xticks([])
    axes.set_yticks([0, 1], ["0", "100 %"])
    nodes = f"{count} node{'s' if count != 1 else ''}" if strip.complete else f"{count} nodes shown"
    name = "leaves" if strip.height == 0 else f"height {strip.height}"
    axes.set_ylabel(f"{name}\n{nodes}\n{strip.messages:,} waiting", rotation=0, ha="right", va="center", fontsize=8, color=INK)
    _plain(axes)


def timeline(versions: Sequence[VersionInfo]) -> dg.MarkdownMetadataValue:
    """Return a picture of the history: objects and buffered messages over time, and what happened when."""
    shown = sorted(versions, key=lambda each: each.version)[-_MAX_TIMELINE:]
    figure = Figure(figsize=(9.5, 4.2), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True)
    times = [each.created_at for each in shown]
    top.step(times, [each.objects or 0 for each in shown], where="post", color=KEYS)
    top.set_ylabel("objects in the tree", color=INK, fontsize=9)
    bottom.fill_between(times, [each.messages or 0 for each in shown], step="post", color=DEBT, alpha=0.8)
    bottom.set_ylabel("buffered messages", color=INK, fontsize=9)
    for operation, (marker, colour, label) in _MARKS.items():
        marked = [each for each in shown if each.operation == operation]
        if marked:
            x, y = [each.created_at for each in marked], [each.objects or 0 for each in marked]
            top.plot(x, y, marker, color=colour, label=label)  # type: ignore[arg-type]
    if top.get_legend_handles_labels()[0]:
        top.legend(frameon=False, labelcolor=INK, fontsize=9)
    locator = AutoDateLocator()
    bottom.xaxis.set_major_locator(locator)
    bottom.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    for axes in (top, bottom):
        axes.set_ylim(bottom=0)
        _plain(axes)
    first, last = shown[0], shown[-1]
    return _markdown(figure, f"versions {first.version} to {last.version}")


def _plain(axes: Axes) -> None:
    axes.patch.set_alpha(0)
    axes.tick_params(colors=INK, labelsize=8)
    for side, spine in axes.spines.items():
        spine.set_visible(side in {"left", "bottom"})
        spine.set_color(INK)


def _markdown(figure: Figure, alternative: str) -> dg.MarkdownMetadataValue:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI, transparent=True)
    data = base64.b64encode(buffer.getvalue()).decode()
    return dg.MetadataValue.md(f"![{alternative}](data:image/png;base64,{data})")
