"""Whether a rewrite of a group of files is worth its cost: of those of one partition by one partition spec.

Pure functions of what ``tables health`` reads, so that it shows what ``tables compact`` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trinitylake_core.durations import millis
from trinitylake_core.errors import InvalidInput
from trinitylake_core.iceberg.reading.file_groups import MANIFEST_BYTES, FileGroup, GroupKey

MIN_FILES: Final = 12
SHARE: Final = 0.8
DELETES: Final = 0.1
LEAST_TARGET: Final = 1 << 20
"""A target below a mebibyte would make more small files than it merges."""
_SHRINKS: Final = 0.25
"""A rewrite that removes a smaller share of the files would be done again every night."""
_REQUEST_BYTES: Final = 1 << 20
"""A request costs as much as so many bytes: about what a store moves in the time that it takes to answer."""

FEW: Final = "too few small files"
SAME: Final = "a rewrite would leave nearly as many files"
HOT: Final = "written to lately"
SMALL: Final = "small files"
DELETED: Final = "deleted rows"
MERGES: Final = "nearly all become one"
LARGE: Final = "large files"


@dataclass(frozen=True, slots=True)
class GroupRules:
    """When a group is rewritten.

    Attributes:
        min_files: from so many small files on,
        deletes: or from this share of deleted rows on,
        share: or where the rewrite removes this share of the files.
        target: the size of data files, in bytes, of tables without the property for it.
        settled_seconds: only groups to which nothing was added for so long; 0: all.
    """

    min_files: int = MIN_FILES
    deletes: float = DELETES
    share: float = SHARE
    target: int | None = None
    settled_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.min_files < 2:
            raise InvalidInput(f"a single file cannot be merged, so min_files is at least 2, not {self.min_files}")
        if not (0 < self.deletes <= 1 and 0 < self.share <= 1):
            raise InvalidInput("deletes and share are shares, above 0 and at most 1")
        if self.target is not None and self.target < LEAST_TARGET:
            raise InvalidInput(f"the target size of files is at least 1 MiB, not {self.target:,} bytes")
        if self.settled_seconds < 0:
            raise InvalidInput("the time for which a partition must have settled must not be negative")


@dataclass(frozen=True, slots=True)
class GroupDecision:
    """What a rewrite of a group would do, and whether it is worth it.

    Attributes:
        wanted: whether it is.
        reason: why, or why not, in a few words.
        files: the data files that it would replace.
        bytes: their sizes together.
        after: how many files it would make of them.
        gain: by how many files the group would have less, delete files included.
        cost: bytes to be read and written, and requests as bytes.
        deletes: the delete files that would go, because all files that they may concern are rewritten.
        merge: what is decided about the small files alone, where large ones are split beside them; else ``None``.
    """

    wanted: bool
    reason: str
    files: int
    bytes: int
    after: int
    gain: int
    cost: int
    deletes: int = 0
    merge: GroupDecision | None = None

    @property
    def worth(self) -> float:
        """Files less for each byte of cost; rewrites are done in this order."""
        return self.gain / self.cost


def decide_group(group: FileGroup, target: int, rules: GroupRules, now_millis: int) -> GroupDecision:
    """Return the decision about one group. ``target`` is the size that data files of its table shall have.

    Small files are rewritten, and all where it pays to let delete files go: only a rewrite of each does that. Where a
    file is large the small ones are rewritten with it, as Iceberg does.
    """
    return _with_large(_decide_merge(group, target, rules, now_millis), group, target, rules, now_millis)


def _with_large(
    merge: GroupDecision, group: FileGroup, target: int, rules: GroupRules, now_millis: int
) -> GroupDecision:
    """Return a decision about small files with the large ones, which become several."""
    rewrites_all = merge.wanted and merge.deletes > 0
    if not group.large_files or rewrites_all or _is_hot(group, rules, now_millis):
        return merge
    files = group.small_files + group.large_files
    size = group.small_bytes + group.large_bytes
    after = files_of_size(size, target)
    cost = 2 * size + _REQUEST_BYTES * (files + after)
    reason = merge.reason if merge.wanted else LARGE
    return GroupDecision(True, reason, files, size, after, files - after, cost, merge=merge)


def _decide_merge(group: FileGroup, target: int, rules: GroupRules, now_millis: int) -> GroupDecision:
    files = group.small_files
    size = group.small_bytes
    deletes = 0
    if group.delete_files and _pays_for_deletes(group, target, rules):
        files = group.files
        size = group.bytes
        deletes = group.delete_files
    after = files_of_size(size, target)
    gain = files - after + deletes
    cost = 2 * size + _REQUEST_BYTES * (files + after)
    wanted, reason = _judge(group, files, gain, deletes, rules)
    if wanted and _is_hot(group, rules, now_millis):
        wanted, reason = False, HOT
    return GroupDecision(wanted, reason, files, size, after, gain, cost, deletes)


def _pays_for_deletes(group: FileGroup, target: int, rules: GroupRules) -> bool:
    """Whether all files of a group are to be rewritten: for the rows that are deleted, or as nearly all files go."""
    gain = group.files - files_of_size(group.bytes, target) + group.delete_files
    is_merged_anyway = group.small_files == group.files
    return (
        is_merged_anyway
        or _share_of_deletes(group) >= rules.deletes
        or _makes_few(group, gain, group.delete_files, rules)
    )


def _share_of_deletes(group: FileGroup) -> float:
    """Return the share of rows that are deleted, about."""
    return group.deletes / group.rows if group.rows else 0.0


def _makes_few(group: FileGroup, gain: int, deletes: int, rules: GroupRules) -> bool:
    return gain >= rules.share * (group.files + deletes) and gain > 0


def files_of_size(size: int, target: int) -> int:
    """Return how many files of the target size so many bytes make: one at least."""
    return max(1, -(-size // max(1, target)))


def _is_hot(group: FileGroup, rules: GroupRules, now_millis: int) -> bool:
    """Whether the rules wait for a group to settle, and a file came to it since."""
    if not rules.settled_seconds:
        return False
    settled_millis = now_millis - millis(rules.settled_seconds)
    return group.newest_millis > settled_millis


def _judge(group: FileGroup, files: int, gain: int, deletes: int, rules: GroupRules) -> tuple[bool, str]:
    """Return whether a group is worth a rewrite, and why or why not."""
    if group.small_files >= rules.min_files:
        reason = SMALL
    elif deletes and _share_of_deletes(group) >= rules.deletes:
        reason = DELETED
    elif _makes_few(group, gain, deletes, rules):
        reason = MERGES
    else:
        return False, FEW
    if not merges(files, gain, deletes):
        return False, SAME
    return True, reason


def merges(files: int, gain: int, delete_files: int) -> bool:
    """Whether a rewrite of so many files makes them fewer by a quarter at least."""
    return gain >= _SHRINKS * (files + delete_files) and gain > 0


def manifests_to_merge(sizes: Iterable[Sequence[int]], least: int | None) -> int:
    """Return how many manifests of data files are worth a merge; 0 for too few, and where nearly as many would be left.

    Args:
        sizes: of the manifests of each partition spec, in bytes: those of two specs cannot be merged.
        least: from so many manifests on; ``None``: never.
    """
    manifests = 0
    after = 0
    for of_spec in sizes:
        manifests += len(of_spec)
        after += max(1, -(-sum(of_spec) // MANIFEST_BYTES))
    is_wanted = least is not None and manifests >= least and merges(manifests, manifests - after, 0)
    return manifests if is_wanted else 0


@dataclass(frozen=True, slots=True)
class TableDecision:
    """The decisions about a table.

    Attributes:
        mergeable: small files that a rewrite can merge with others, whether it is wanted or not.
        groups: the decisions about those groups for which a rewrite is wanted, the best first.
    """

    mergeable: int
    groups: tuple[tuple[GroupKey, GroupDecision], ...]

    @property
    def files(self) -> int:
        """How many data files would be replaced."""
        return sum(each.files for _, each in self.groups)

    @property
    def after(self) -> int:
        """How many files would be made of them."""
        return sum(each.after for _, each in self.groups)

    @property
    def bytes(self) -> int:
        """Their sizes together."""
        return sum(each.bytes for _, each in self.groups)


def decide_table(
    groups: Mapping[GroupKey, FileGroup], target: int, rules: GroupRules, now_millis: int
) -> TableDecision:
    """Return the decisions about all groups of a table."""
    mergeable = 0
    wanted: list[tuple[GroupKey, GroupDecision]] = []
    for key, group in groups.items():
        decision = decide_group(group, target, rules, now_millis)
        merge = decision.merge or decision
        if group.small_files and merges(merge.files, merge.gain, merge.deletes):
            mergeable += group.small_files
        if decision.wanted:
            wanted.append((key, decision))
    return TableDecision(mergeable, tuple(sorted(wanted, key=_by_worth)))


def _by_worth(each: tuple[GroupKey, GroupDecision]) -> tuple[float, GroupKey]:
    key, decision = each
    return -decision.worth, key


def take_within(decisions: Sequence[GroupDecision], budget_bytes: int | None) -> Iterable[int]:
    """Yield the numbers of those decisions that a budget of bytes is enough for, the best first.

    A group that is too large for what is left is left out, and smaller ones after it are taken.
    """
    left = budget_bytes
    for number in sorted(range(len(decisions)), key=lambda each: (-decisions[each].worth, each)):
        size = decisions[number].bytes
        if left is None:
            yield number
        elif size <= left:
            left -= size
            yield number
