"""Pictures of trees and histories: PNG in Markdown, readable in light and dark mode."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import dagster as dg

from pipelines.reports.sketch import Strip
from pipelines.reports.summary import utc
from pipelines.tables_health import TableHealth
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
_TICKS: Final = 5
"""So many versions but the first are named below the timeline."""
_WIDEST: Final = 8.7  # inches; wider pictures are cut off by Dagster in a window of 1280 pixels


def trees(pictured: Sequence[tuple[str, Sequence[Strip]]]) -> dg.MarkdownMetadataValue:
    """Return a picture of trees side by side, such as before and after: a pair of bars per node, in key order.

    Its size depends on the height of the trees alone; of a level with many nodes it shows a sample, with a note.
    """
    rows = max(len(strips) for _, strips in pictured)
    width = min(5.2 * len(pictured) + 1.6, _WIDEST)
    height = 0.75 * rows + 1.3
    figure = _figure(width, height)
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
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=2,
        frameon=False,
        labelcolor=INK,
        fontsize=9,
    )
    titles = [title for title, _ in pictured]
    return _draw_markdown(figure, "; ".join(titles))


def _draw_tree(
    axes: Sequence[Axes],
    title: str,
    strips: Sequence[Strip],
    scale: float,
) -> None:
    """Draw the levels of a tree from the bottom up: a lower tree leaves the upper rows empty."""
    above = len(axes) - len(strips)
    for empty in axes[:above]:
        empty.set_axis_off()
    for level, strip in zip(axes[above:], strips, strict=True):
        _draw_strip(level, strip, scale)
    axes[above].set_title(title, color=INK, fontsize=11)


def _draw_strip(axes: Axes, strip: Strip, scale: float) -> None:
    if len(strip.fill) < _CROWD:
        _draw_bars(axes, strip)
    else:
        _draw_outlines(axes, strip)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, scale)
    axes.set_xticks([])
    axes.set_yticks([0, 1], ["0", "100 %"])
    label = _describe_strip(strip)
    axes.set_ylabel(
        label,
        rotation=0,
        ha="right",
        va="center",
        fontsize=8,
        color=INK,
    )
    _plain(axes)


def _draw_bars(axes: Axes, strip: Strip) -> None:
    """Draw a pair of bars for each node; only the one of its keys where nothing waits in the whole level."""
    count = len(strip.fill)
    room = 0.86 / count
    has_debt = any(strip.debt)
    if has_debt:  # two bars share the room of one
        width = room / 2
        aside = width / 2
    else:
        width = room
        aside = 0.0
    centres = [(index + 0.5) / count for index in range(count)]
    left = [centre - aside for centre in centres]
    right = [centre + aside for centre in centres]
    axes.bar(left, strip.fill, width, color=KEYS, label=_KEYS_LABEL)
    axes.bar(right, strip.debt, width, color=DEBT, label=_DEBT_LABEL)


def _draw_outlines(axes: Axes, strip: Strip) -> None:
    """Draw two outlines over each other: so many bars side by side would be one solid block."""
    count = len(strip.fill)
    edges = [index / count for index in range(count + 1)]
    axes.stairs(strip.fill, edges, fill=True, color=KEYS, alpha=0.25)
    axes.stairs(
        strip.fill,
        edges,
        color=KEYS,
        linewidth=0.9,
        label=_KEYS_LABEL,
    )
    axes.stairs(
        strip.debt,
        edges,
        fill=True,
        color=DEBT,
        alpha=0.9,
        label=_DEBT_LABEL,
    )


def _describe_strip(strip: Strip) -> str:
    """Return what stands beside a level: its height, its nodes, and what is buffered in those that are drawn."""
    count = len(strip.fill)
    if strip.height == 0:
        name = "leaves"
    else:
        name = f"height {strip.height}"
    nodes = f"{count} node{'s' if count != 1 else ''}"
    buffered = f"{strip.messages:,} buffered"
    if not strip.complete:
        unimportant_digits = max(0, len(str(strip.nodes)) - 2)
        about = round(strip.nodes, -unimportant_digits)
        nodes = f"{count} of about {about:,} nodes"
        buffered += " in those"
    return f"{name}\n{nodes}\n{buffered}"


def timeline(versions: Sequence[VersionInfo]) -> dg.MarkdownMetadataValue:
    """Return a picture of the history: objects, buffered messages and operations, version by version.

    Not over time: after a quiet month a busy day would be one line at the left edge.
    """
    shown = sorted(versions, key=lambda each: each.version)
    figure = _figure(_WIDEST, 4.2)
    top, bottom = figure.subplots(2, 1, sharex=True)
    numbers = [each.version for each in shown]
    objects = [each.objects or 0 for each in shown]
    messages = [each.messages or 0 for each in shown]
    top.step(numbers, objects, where="post", color=KEYS)
    top.set_ylabel("objects", color=INK, fontsize=9)
    bottom.fill_between(numbers, messages, step="post", color=DEBT, alpha=0.8)
    bottom.set_ylabel("buffered messages", color=INK, fontsize=9)
    for operation in _MARKS:
        marked = [each for each in shown if each.operation == operation]
        _mark_operation(top, operation, marked)
    if top.get_legend_handles_labels()[0]:
        top.legend(frameon=False, labelcolor=INK, fontsize=9)
    first = shown[0]
    last = shown[-1]
    beginning = f"version {first.version}, {utc(first.created_at)}"
    end = f"version {last.version}, {utc(last.created_at)}"
    span = f"{beginning}, to {end}"
    bottom.set_xlabel(span, color=INK, fontsize=9)
    for axes in (top, bottom):
        highest = max(axes.dataLim.y1, 1)
        axes.set_ylim(0, 1.15 * highest)  # markers at the upper edge are not cut off
        axes.margins(x=0.02)
        _plain(axes)
    named = [shown[round(part * (len(shown) - 1) / _TICKS)] for part in range(_TICKS + 1)]
    labels = {each.version: f"version {each.version}\n{each.created_at:%d %b %H:%M}" for each in named}
    bottom.set_xticks([*labels], [*labels.values()])
    return _draw_markdown(figure, span)


def _mark_operation(axes: Axes, operation: str, versions: Sequence[VersionInfo]) -> None:
    """Draw a marker at each version of an operation, if there are any."""
    if not versions:
        return
    marker, colour, label = _MARKS[operation]
    numbers = [each.version for each in versions]
    heights = [each.objects or 0 for each in versions]
    axes.plot(numbers, heights, marker, color=colour, label=label)


def tables(measured: Sequence[TableHealth]) -> dg.MarkdownMetadataValue:
    """Return a picture of tables: a bar each, of what the newest snapshot needs and what only old ones keep."""
    height = 0.28 * len(measured) + 1.1
    figure = _figure(_WIDEST, height)
    axes = figure.subplots()
    places = range(len(measured))
    names = [_short_name(each.table) for each in measured]
    live = []
    old = []
    for each in measured:
        live.append(each.bytes / _MEBIBYTE)
        old.append(each.old_bytes / _MEBIBYTE)
    axes.barh(places, live, 0.6, color=KEYS, label="the newest snapshot")
    axes.barh(
        places,
        old,
        0.6,
        left=live,
        color=DEBT,
        label="old snapshots only",
    )
    axes.set_yticks(places, names, parse_math=False)
    axes.set_ylim(len(measured) - 0.4, -0.6)  # the heaviest on top
    axes.set_xlabel("MiB", color=INK, fontsize=9)
    figure.legend(
        loc="outside upper right",
        ncols=2,
        frameon=False,
        labelcolor=INK,
        fontsize=9,
    )
    _plain(axes)
    return _draw_markdown(figure, f"the {len(measured)} heaviest tables")


def _short_name(name: str) -> str:
    if len(name) <= _LONG:
        return name
    return f"...{name[-_LONG:]}"


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
    content = buffer.getvalue()
    data = base64.b64encode(content).decode()
    return dg.MetadataValue.md(f"![{alternative}](data:image/png;base64,{data})")
