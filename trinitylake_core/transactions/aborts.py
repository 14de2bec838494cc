"""Giving a saved transaction up: never by deleting what another process may commit (format, section 6)."""

from __future__ import annotations

from trinitylake_core import spec
from trinitylake_core.commits.changes import Aborted, facts
from trinitylake_core.commits.commit import MAX_ATTEMPTS, commit
from trinitylake_core.commits.files import Files
from trinitylake_core.errors import CommitConflict, TransactionExpired
from trinitylake_core.transactions.savedfile import SavedFile
from trinitylake_core.versions import Root


def abort_saved(files: Files, base: Root, file: SavedFile, *, unknown: bool = False) -> None:
    """Abort a transaction that was resumed; its files stay for `clean`. One ``put`` if nobody else has touched it.

    If somebody else has taken it, or this process did and does not know what came of it (``unknown``), a root decides:
    then it costs a commit, too.

    Raises:
        CommitConflict: it was committed, or saved again, by another process; nothing was aborted.
        StorageError: it may or may not be aborted.
    """
    decided = False
    for _ in range(MAX_ATTEMPTS):
        if file.over:
            if file.definition is None and not decided:
                _refuse_committed(files, base, file.id)
            return
        if file.superseded:
            raise CommitConflict(f"transaction {file.id} was saved again since it was resumed; resume it to abort it")
        if not decided and (file.taken_by_others or (unknown and file.taken)):
            _decide(files, base, file.id)
            decided = True
        if file.mark_aborted():
            return
        file.read()
    raise CommitConflict(f"transaction {file.id} was changed again and again; try again")


def _decide(files: Files, base: Root, transaction_id: str) -> None:
    """Commit a root that says so, unless the transaction is in the history. Raises ``CommitConflict``."""
    try:
        commit(files, base, Aborted(transaction_id, facts(aborted=transaction_id)))
    except TransactionExpired:
        # What follows the base has expired, so nobody can commit on top of it any more.
        return


def _refuse_committed(files: Files, base: Root, transaction_id: str) -> None:
    """Raise ``CommitConflict`` if a version after ``base`` is this transaction. One ``get`` for each of them."""
    newest = files.newest()
    if newest.version <= base.version or newest.oldest_version > base.version + 1:
        return
    for root in files.versions.since(base)[0]:
        if root.txn == transaction_id and root.operation != spec.OP_ABORT:
            raise CommitConflict(
                f"transaction {transaction_id} was committed by another process, as version {root.version}",
                version=root.version,
            )
