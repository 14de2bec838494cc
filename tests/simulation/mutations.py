"""Each repair of the fences, taken out again: the simulation must find a schedule against what is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from pipelines import clean, expire, export, tables_clean
from pipelines.copy import destination
from pipelines.copy import plan as copy_plan
from pipelines.reach import kept_roots, sweep
from pipelines.reach.kept_roots import SavedTransactions
from pipelines.reach.sweep import RootsExpired
from pipelines.reach.table_sweep import TableSweep
from pipelines.reach.walk import FOREVER
from trinitylake_core import snapshots
from trinitylake_core.commits import changes, fences, rolled_back
from trinitylake_core.commits import commit as commits
from trinitylake_core.commits import confirm as acknowledging
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.commits.confirm import write_hint
from trinitylake_core.definitions import TransactionDef, encode
from trinitylake_core.errors import CorruptNode, OutcomeUnknown, TransactionExpired
from trinitylake_core.iceberg.attempt import Attempt
from trinitylake_core.iceberg.commit_rules import added
from trinitylake_core.iceberg.reading.references import files_in
from trinitylake_core.recovery import rollback
from trinitylake_core.spec import BOUNDARY_FILE, FREEZE, TABLES_VOID_BEFORE_MILLIS
from trinitylake_core.tables import path_below
from trinitylake_core.transactions import group, saved
from trinitylake_core.transactions.change import TransactionChange
from trinitylake_core.transactions.edits import CatalogEdits
from trinitylake_core.transactions.group import CommitGroup
from trinitylake_core.transactions.requests import RequestKey, Requests
from trinitylake_core.versions import CountBounds, RootRows, Versions, search
from trinitylake_core.versions.root_files import RootFiles

_ROLLED_BACK: Final = rolled_back.rolled_back
Patches = dict[tuple[Any, str], Any]


@dataclass(frozen=True, slots=True)
class Mutation:
    """A repair taken out: how, and within which bounds a schedule against it is to be found.

    Attributes:
        patches: what is replaced by what, by owner and name; asked when the repair is taken out.
        kinds: the scenario.
        preemptions: of the schedule.
        faults: of the schedule, each of the kinds in ``fault``.
        fault: deaths and stalls, say.
    """

    patches: Callable[[], Patches]
    kinds: tuple[str, ...]
    preemptions: int = 1
    faults: int = 0
    fault: tuple[str, ...] = ("die",)
    courtesy: bool = True
    """Whether writers look at the boundary before they create a root, too."""
    ahead_days: tuple[int, ...] = ()
    """How far the clocks of the actors are ahead."""
    schedule: str = ""
    """The schedule itself, where it has too many decisions to be searched for."""

    def taken_out(self) -> AbstractContextManager[None]:
        """Take the repair out as long as the context lasts."""
        return _patched(self.patches())


@contextmanager
def _patched(patches: Patches) -> Iterator[None]:
    before = {(owner, name): vars(owner)[name] for owner, name in patches}
    for (owner, name), value in patches.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name), value in before.items():
            setattr(owner, name, value)


def _blind_boundary(files: Any, to: int) -> int:
    if (int(files.boundary_file() or 0)) < to:
        files.storage.replace(BOUNDARY_FILE, str(to).encode())
    return to


def _blind_replace(self: Any, definition: Any) -> bool:
    self._storage.replace(self.path, encode(definition))
    self.definition = definition
    return True


def _announce_nothing(self: Any, running: str) -> bool:
    replaced = TransactionDef()
    replaced.CopyFrom(self.definition)
    return bool(self.store(replaced, running))


def _unfenced(self: Any, marked: Any, cutoff: int, orphan_files: int) -> Any:
    return marked.newest


def _fenced_too_low(self: Any, marked: Any, cutoff: int, orphan_files: int) -> Any:
    del cutoff
    return _fence(self, marked, 1, orphan_files)


def _without_metadata(self: Any) -> Iterator[str]:
    own = {path_below(self._storage.root, each.location) for each in self._tables}
    return (path for path in _added(self) if path not in own)


def _only_data(data: bytes, location: str) -> Any:
    return (each.uri for each in files_in(data, location) if not each.deletes)


def _young_if_missing(self: Any, path: str) -> tuple[str, int]:
    found = _time_of(self, path)
    return found if found[1] != added._GONE else (path, 1 << 60)


def _no_table_files(self: Any, *kinds: str) -> tuple[int, int, int]:
    return (0, 0, 0) if kinds == copy_plan.OF_TABLES else _copy_files(self, *kinds)


def _not_carried_on(base: Any, draft: Any, stamp: int, target_bytes: int) -> Any:
    node = _finish(base, draft, stamp, target_bytes)
    if TABLES_VOID_BEFORE_MILLIS not in draft.system:
        node.system.pop(TABLES_VOID_BEFORE_MILLIS, None)
    return node


def _without_others(self: Any, before: Any, after: Any, location: str, *, is_own: bool = True, **more: Any) -> None:
    if is_own:
        _add(self, before, after, location, **more)


def _blind_claim(files: Any, to: int, seen: Any, known: Any) -> bytes:
    files.storage.replace(BOUNDARY_FILE, b"%d\n" % to)
    return b"%d\n" % to


def _blind_settling(files: Any, to: int, known: Any, **about: Any) -> bool:
    files.storage.replace(BOUNDARY_FILE, str(to).encode())
    return True


def _on_the_readable_one(files: Any) -> rolled_back.Base:
    readable = files.versions.newest_readable()[0]
    return rolled_back.Base(readable, readable)


def _deleting(versions: Any, root: Any) -> None:
    try:
        acknowledging.confirm_commit(versions, root)
    except OutcomeUnknown:
        own = root.own_messages().values
        acknowledging.remove_quietly(versions.storage, [root.path, *(path for path in own if path is not None)])
        raise


def _thawing(target: Any, newest: Any) -> Any:
    definition = _ROLLED_BACK(target, newest)
    definition.properties.pop(FREEZE, None)
    return definition


def _guess(root: Any, why: str) -> TransactionExpired:
    return TransactionExpired(f"version {root.version} was not committed: {why}")


def _abort_all_the_same(files: Any, base: Any, transaction_id: str) -> None:
    with suppress(OutcomeUnknown):
        _decide_abort(files, base, transaction_id)


def _trusting(self: Any, fence: Any, check: Any) -> None:
    with suppress(RootsExpired):
        _mark_since(self, fence, check)


def _fenced_by_the_tip(self: Any, change: Any) -> Any:
    base, _ = _stand(self, change)
    return base, fences.Fences(self._backend.storage, base)


def _proved_once(self: Any, base: Any, created_at_millis: Any = None) -> None:
    if base.version == self.base.version:
        _prove(self, base, created_at_millis)


def _mark_the_newest(self: Any, starts: Any, paths: Any, *, afresh: bool = False) -> None:
    versions = sorted((each.last, each) for each in starts if each.last < FOREVER)
    _mark(self, [each for _, each in versions[-1:]], paths, afresh=afresh)


_mark = TableSweep.mark
_fence = clean.Cleaning.fence
_added = added.AddedFiles._find_added
_add = added.AddedFiles.add
_copy_files = copy_plan.FilesToCopy.copy
_time_of = added.AddedFiles._time_of
_finish = commits.finish_root
_prove = TransactionChange.prove
_decide_abort = saved.decide_abort
_stand = CommitGroup._stand
_mark_since = sweep.Marking.mark_since


def _without_members(self: Any, own: Any) -> dict[str, Any]:
    summary = _summary(self, own)
    summary.pop("members", None)
    return summary


def _keep_all(self: Any, prove: Any) -> None:
    for entry in self.members:
        prove(entry.change)


def _always_alone(self: Any, own: Any) -> dict[str, Any]:
    self.is_alone = self.is_alone or len(self.members) == 1
    return _summary(self, own)


def _only_own(self: Any, txn: str) -> bool:
    return bool(self.txn == txn and self.operation != "abort")


def _rebase_nothing(self: Any, base: Any, newer: Any) -> None:
    self.remember(newer)


def _note_anything(self: Any, root: Any) -> None:
    with self._lock:
        self._add(root)
        self._high = max(self._high, root.version)


def _read_what_is_there(self: Any, first: int, above: int, millis: int) -> Iterator[Any]:
    with suppress(OutcomeUnknown):
        yield from _read_versions(self, first, above, millis)


_summary = group._GroupChange._summary
_read_versions = Requests._read_versions


def _only_whole_roots(self: Any, versions: Any) -> Iterator[Any]:
    for root in _read_roots(self, versions):
        if root is not None and root.unreadable is not None:
            raise CorruptNode(root.unreadable, path=root.path)
        yield root


_read_roots = RootFiles.read_roots
GROUPS: Final[dict[str, Mutation]] = {
    "members of a group do not conflict with each other": Mutation(
        lambda: {(group._GroupChange, "_refuse_conflicting"): lambda self, change: None}, ("group",), preemptions=0
    ),
    "what one member raises is its own outcome": Mutation(
        lambda: {(group._GroupChange, "_keep"): _keep_all}, ("request", "write")
    ),
    "members are rebased over what others commit": Mutation(
        lambda: {(group._GroupChange, "rebase"): _rebase_nothing}, ("group", "write")
    ),
    "members are rebased over what their process committed": Mutation(
        lambda: {(group._GroupChange, "rebase"): _rebase_nothing}, ("group-same",), preemptions=0
    ),
    "every member has an outcome": Mutation(
        lambda: {(group.Entry, "end"): lambda self, **outcome: None}, ("group-broken",), preemptions=0
    ),
    "objects that members create are counted": Mutation(
        lambda: {(TransactionChange, "count_gained"): lambda self: CountBounds()}, ("group-create",), preemptions=0
    ),
    "a version names its members": Mutation(
        lambda: {(group._GroupChange, "_summary"): _without_members}, ("group-create",), preemptions=0
    ),
    "a version names its only member if that has a key": Mutation(
        lambda: {(group._GroupChange, "_summary"): _always_alone}, ("request-alone",), preemptions=0
    ),
    "an abort looks at members": Mutation(
        lambda: {(RootRows, "contains"): _only_own}, ("group-abort",), preemptions=0, faults=1, fault=("cut",)
    ),
    "a request is looked for among members": Mutation(
        lambda: {(Requests, "_add"): lambda self, root: self._until.__setitem__(root.version, 0)},
        ("request-alone",), preemptions=0,
    ),
    "a version says until when its keys reach": Mutation(
        lambda: {(group._GroupChange, "_row_of_requests"): lambda self, base: {}},
        ("request", "write-other", "request"), preemptions=0,
    ),
    "no version is older than its key": Mutation(
        lambda: {(RequestKey, "refuse_earlier"): lambda self, created, base: None},
        ("request", "write-other", "request"), preemptions=0, ahead_days=(-3, -3, 0),
    ),
    "where versions have expired the outcome is unknown": Mutation(
        lambda: {(Requests, "_read_versions"): _read_what_is_there}, ("request", "later", "request"), preemptions=0
    ),
    "versions are noted one after the other": Mutation(
        lambda: {(Requests, "note"): _note_anything}, ("request-at-two",), preemptions=0
    ),
    "nothing to do needs a fresh read": Mutation(
        lambda: {(Attempt, "writes_anything"): True}, ("unset",), preemptions=0
    ),
    "that there is nothing to do stays true": Mutation(
        lambda: {(CatalogEdits, "need_unchanged"): lambda self, kind, namespace, name: None},
        ("unset-one",), preemptions=0,
    ),
    "a clock is compared before it makes a fence": Mutation(
        lambda: {(fences, "CLOCKS_DIFFER_MILLIS"): 1 << 50}, ("recover-misled",), preemptions=0
    ),
}  # fmt: skip
"""Those of groups, keys and clocks."""
MUTATIONS: Final[dict[str, Mutation]] = {
    **GROUPS,
    "the boundary is looked at after creating": Mutation(
        lambda: {(commits, "confirm_commit"): lambda versions, root: write_hint(versions.storage, root.version)},
        ("write-stale", "expire"),
    ),
    "a next root that does not tell is no proof": Mutation(
        lambda: {(acknowledging, "_is_built_on"): lambda versions, root: True}, ("write-hole-short",), preemptions=0
    ),
    "a search ends with a look at the boundary": Mutation(
        lambda: {(search._Found, "is_newest"): property(lambda self: self.root is not None)},
        ("write-stale", "expire"),
        faults=1,
    ),
    "the boundary is compared and set": Mutation(
        lambda: {(expire, "raise_boundary"): _blind_boundary}, ("expire", "expire-some")
    ),
    "fenced files are written again": Mutation(
        lambda: {(fences.Fences, "void"): lambda self, newer: False}, ("write-other", "clean")
    ),
    "fenced jobs start over": Mutation(
        lambda: {(fences.Fences, "void"): lambda self, newer: False}, ("compact", "clean")
    ),
    "a rollback does not take over what expired": Mutation(
        lambda: {(rolled_back, "refuse_lost"): lambda files, newest, wanted: None}, ("rollback", "expire", "clean")
    ),
    "a snapshot does not take over what expired": Mutation(
        lambda: {(snapshots, "refuse_lost"): lambda files, newest, wanted: None}, ("snapshot", "expire", "clean")
    ),
    "cleaning commits a fence": Mutation(lambda: {(clean.Cleaning, "fence"): _unfenced}, ("write-other", "clean")),
    "cleaning marks what came in before the fence": Mutation(
        lambda: {(sweep.Marking, "mark_since"): lambda self, fence, check: None},
        ("write-other", "clean"),
        preemptions=2,
    ),
    "saved transactions are marked": Mutation(
        lambda: {(sweep, "live_transactions"): lambda *about: SavedTransactions()}, ("clean",), preemptions=0
    ),
    "a save looks at the fence": Mutation(
        lambda: {(saved, "is_fenced"): lambda storage, since, newest: False}, ("save", "clean")
    ),
    "a save keeps the one before": Mutation(
        lambda: {(saved.SavedFile, "announce"): _announce_nothing}, ("save-again", "clean"), faults=1
    ),
    "pending saves are marked": Mutation(
        lambda: {(kept_roots, "is_there"): lambda storage, path: False}, ("save-again", "clean")
    ),
    "a commit takes the saved transaction": Mutation(
        lambda: {(saved.SavedFile, "take"): lambda self: None}, ("publish", "save-again")
    ),
    "saves are compared and set": Mutation(
        lambda: {(saved.SavedFile, "replace"): _blind_replace}, ("save-again", "publish")
    ),
    "the abort of what was taken is decided by a root": Mutation(
        lambda: {(saved, "decide_abort"): lambda files, base, transaction_id: None}, ("publish", "abort")
    ),
    "the place of a copy is claimed": Mutation(
        lambda: {(destination, "claim_boundary"): _blind_claim},
        ("export", "export-history"),
    ),
    "a root after a gap is claimed": Mutation(
        lambda: {(destination.Destination, "follows"): property(lambda self: self.newest is not None)},
        ("export-again",),
        preemptions=0,
        faults=1,
    ),
    "the boundary of a copy is settled": Mutation(
        lambda: {(destination, "settle_boundary"): _blind_settling}, ("export-again", "export-old")
    ),
    "a version that expired meanwhile is not called damaged": Mutation(
        lambda: {(export._Export, "refuse_gone"): lambda *_: None}, ("export-history", "expire")
    ),
    "a damaged root is passed over": Mutation(
        lambda: {(RootFiles, "read_roots"): _only_whole_roots}, ("recover-older", "expire-some")
    ),
    "a rollback stands on the damaged root": Mutation(
        lambda: {(rollback, "newest_base"): _on_the_readable_one}, ("recover", "write")
    ),
    "a late commit meets the abort": Mutation(
        lambda: {(TransactionChange, "_recognise"): lambda self, root: None}, ("publish", "abort")
    ),
    "writers delete nothing": Mutation(
        lambda: {(commits, "confirm_commit"): _deleting}, ("write", "later"), faults=1, fault=("lose",)
    ),
    "no outcome is guessed": Mutation(
        lambda: {(acknowledging, "_unknown_outcome"): _guess}, ("write", "later"), faults=1, fault=("lose",)
    ),
    "a claim decides nothing": Mutation(
        lambda: {(acknowledging, "_unknown_outcome"): _guess}, ("export-rest", "write-copy"), courtesy=False
    ),
    "a lost answer leaves doubt": Mutation(
        lambda: {(commits._Doubt, "refuse_to_deny"): lambda self, error: None},
        ("write-retry", "later"),
        faults=1,
        fault=("cut",),
    ),
    "an abort whose base has expired is refused": Mutation(
        lambda: {(saved, "decide_abort"): _abort_all_the_same}, ("abort", "publish", "later")
    ),
    "files of a commit are held to the fence of tables": Mutation(
        lambda: {(added.AddedFiles, "refuse_void"): lambda self, base: None}, ("append", "tables-clean")
    ),
    "they are held to a fence that came in between": Mutation(
        lambda: {(TransactionChange, "prove"): _proved_once}, ("append", "tables-clean")
    ),
    "manifest lists that are new are read": Mutation(
        lambda: {(added._Added, "new_lists"): lambda self: set()}, ("append", "tables-clean")
    ),
    "metadata files are asked for": Mutation(
        lambda: {(added.AddedFiles, "_find_added"): _without_metadata}, ("append-alter", "tables-clean")
    ),
    "files of deletes are asked for": Mutation(
        lambda: {(added, "_uris_in"): _only_data}, ("append-deletes", "tables-clean")
    ),
    "files of statistics are asked for": Mutation(
        lambda: {(added, "_statistics"): lambda metadata: set()}, ("append-statistics", "tables-clean")
    ),
    "what is missing is refused": Mutation(
        lambda: {(added.AddedFiles, "_time_of"): _young_if_missing}, ("append-deletes", "tables-clean")
    ),
    "metadata that are registered are held to the fence": Mutation(
        lambda: {(added.AddedFiles, "add"): _without_others}, ("register", "tables-clean")
    ),
    "metadata that nothing proves are refused": Mutation(
        lambda: {(TransactionChange, "_find_unproved_files"): lambda self, base: set()},
        ("name-metadata", "tables-clean"),
    ),
    "the fence says until when files went": Mutation(
        lambda: {(clean.Cleaning, "fence"): _fenced_too_low}, ("append", "tables-clean")
    ),
    "the fence of tables is carried on": Mutation(
        lambda: {(commits, "finish_root"): _not_carried_on}, ("append", "tables-clean", "write-other")
    ),
    "tables are cleaned behind a fence": Mutation(
        lambda: {(clean.Cleaning, "fence"): _unfenced}, ("append", "tables-clean")
    ),
    "the fence is one of tables": Mutation(
        lambda: {(tables_clean.TablesCleaning, "of_tables"): False}, ("append", "tables-clean")
    ),
    "tables that came in before the fence are marked": Mutation(
        lambda: {(sweep.Marking, "mark_since"): lambda self, fence, check: None},
        ("append", "tables-clean"),
    ),
    "tables of all retained versions are marked": Mutation(
        lambda: {(TableSweep, "mark"): _mark_the_newest}, ("append", "compact", "tables-clean"), preemptions=0
    ),
    "what tables need is copied before roots are": Mutation(
        lambda: {(copy_plan.FilesToCopy, "copy"): _no_table_files}, ("export-tables",), preemptions=0
    ),
    "a creator looks at the boundary": Mutation(
        lambda: {(changes, "confirm_commit"): lambda versions, root: write_hint(versions.storage, root.version)},
        ("create", "expire"),
        preemptions=0,
    ),
    "a handle knows its lakehouse": Mutation(
        lambda: {(LakehouseBackend, "refuse_replaced"): lambda self, root: None},
        ("recreate-copy", "refresh-copy"),
        preemptions=0,
    ),
    "a group is fenced by its oldest base": Mutation(
        lambda: {(CommitGroup, "_stand"): _fenced_by_the_tip},
        ("group", "clean"),
        schedule="0 10>1 88~0:day 93>1",
    ),
    "a request is looked for before its base": Mutation(
        lambda: {(Requests, "refuse_repeated"): lambda self, key, base: None}, ("request", "request"), preemptions=0
    ),
    "what began to expire is marked again": Mutation(
        lambda: {(sweep.Marking, "mark_since"): _trusting},
        ("write", "write-large", "clean", "expire"),
        schedule="0 2>1 15>2 101>1 178~3:month",
    ),
    "a late file of a saved transaction is dead": Mutation(
        lambda: {(kept_roots, "is_there"): lambda storage, path: True},
        ("save-publish",),
        preemptions=0,
        faults=1,
        fault=("late",),
    ),
    "commits obey a freeze": Mutation(
        lambda: {(commits, "freeze_in_force"): lambda backend, definition: None}, ("write", "freeze")
    ),
    "a rollback does not thaw": Mutation(lambda: {(rolled_back, "rolled_back"): _thawing}, ("rollback", "freeze")),
    "a hole is found by a listing": Mutation(
        lambda: {(Versions, "refuse_hole"): lambda self, newest, listed=None: None}, ("clean-holes",), preemptions=0
    ),
    "an export finds a hole": Mutation(
        lambda: {(Versions, "refuse_hole"): lambda self, newest, listed=None: None}, ("export-hole",), preemptions=0
    ),
    "a root below the boundary is no version": Mutation(
        lambda: {(Versions, "root"): lambda self, version: self.try_root(version)}, ("at", "expire")
    ),
}
"""By the rule that is missing; the names are those of the model where it has the rule."""
