"""The abort of a saved transaction: it never deletes files that another process may commit (format, section 6)."""

from __future__ import annotations

from trinitylake_core.commits.changes import Aborted, commit_summary
from trinitylake_core.commits.commit import MAX_ATTEMPTS, commit
from trinitylake_core.commits.files import LakehouseStore
from trinitylake_core.errors import CommitConflict, OutcomeUnknown, TransactionExpired
from trinitylake_core.transactions.savedfile import SavedFile
from trinitylake_core.versions import Root


def abort_saved(files: LakehouseStore, base: Root, file: SavedFile, *, unknown: bool = False) -> None:
    """Abort a transaction that was resumed; its files stay for `clean`. One ``put`` if no other process touched it.

    A root decides if another process has taken it, if its file is gone, or if this process took it and does not know
    what came of it (``unknown``). That costs a commit, too.

    Raises:
        CommitConflict: it is committed, or was saved again by another process; nothing was aborted.
        OutcomeUnknown: it may be committed, and the versions that would tell have expired; nothing was aborted.
        StorageError: it may or may not be aborted.
    """
    decided = False
    for _ in range(MAX_ATTEMPTS):
        if file.over:
            if file.definition is None and not decided:
                decide_abort(files, base, file.id)
            return
        if file.superseded:
            raise CommitConflict(f"transaction {file.id} was saved again since it was resumed; resume it to abort it")
        if not decided and (file.taken_by_others or (unknown and file.taken)):
            decide_abort(files, base, file.id)
            decided = True
        if file.mark_aborted():
            return
        file.read()
    raise CommitConflict(f"transaction {file.id} was changed again and again; try again")


def decide_abort(files: LakehouseStore, base: Root, transaction_id: str) -> None:
    """Commit a root that aborts a transaction. A process that took it, and commits late, meets that root.

    Raises:
        CommitConflict: the transaction is in the history.
        OutcomeUnknown: the versions after ``base``, of which one may be this transaction, have expired.
    """
    try:
        commit(files, base, Aborted(transaction_id, commit_summary(aborted=transaction_id)))
    except (TransactionExpired, OutcomeUnknown) as error:
        raise OutcomeUnknown(
            f"transaction {transaction_id} may be committed, and nothing proves that it is not: {error}. Its files "
            "stay until `clean` finds that no version reaches them"
        ) from error
