"""Stores that have to prove that they decide: before the first file that is created, and again and again.

A store that is changed while writers run may let each of them win. So a file that was created counts only when a proof
covers it (``promise``), and an answer of another shape asks for a new one first. Where that fails, the file is taken
back: it may hide the file of another writer, which had been acknowledged before.
"""

from __future__ import annotations

import logging
import os
import uuid
from typing import ClassVar, Final, Literal

from trinitylake_core.errors import OutcomeUnknown, StorageError, UnsafeStorage
from trinitylake_core.storage.base import BaseStorage
from trinitylake_core.storage.contests import SCRATCH_PREFIX, Creations, Replacements, StorageContest
from trinitylake_core.storage.port import Data, Tagged
from trinitylake_core.storage.promise import Promise, Shape, shape_of
from trinitylake_core.storage.proof import SHORT, THOROUGH, Sample, prove

_LOG = logging.getLogger(__name__)

What = Literal["creations", "replacements"]
_PROOFS: Final = 3
"""How often a proof is made again during which the shape of answers changed, or evidence came in."""
_LACKS: Final = {
    "creations": "exclusive creation (If-None-Match: *): concurrent commits would overwrite each other. Reading works; "
    "write to a store that keeps this promise",
    "replacements": "compare-and-set (If-Match): two expirations at a time could bring expired versions back. Reading "
    "and committing work; expire on a store that keeps this promise",
}

_promises: dict[tuple[What, str, str], Promise] = {}
os.register_at_fork(after_in_child=_promises.clear)  # their locks may be held by threads that are not there


class CheckedByTrying(BaseStorage):
    """A storage that has to prove that its server decides."""

    SAMPLE: ClassVar[Sample] = THOROUGH
    #: the server that decides, where it is not the one that the root names
    _endpoint: str = ""

    def _promise(self, what: What) -> Promise:
        """Return what this process knows of the bucket."""
        bucket = self.root.partition("://")[2].partition("/")[0]
        return _promises.setdefault((what, bucket, self._endpoint), Promise())

    def _note_read(self, version: str | None) -> None:
        """Note the version ID in the answer to a read, or that there is none."""
        self._promise("creations").note_read(version)
        self._promise("replacements").note_read(version)

    def _note_written(self, version: str | None) -> None:
        """Note the version ID in the answer to a write, or that there is none."""
        self._promise("creations").note_write(version)
        self._promise("replacements").note_write(version)

    def doubt(self, path: str | None = None) -> None:
        about = None if path is None else self.root + path
        self._promise("creations").doubt(about)
        self._promise("replacements").doubt(about)

    def settle_doubt(self) -> bool:
        promise = self._promise("creations")
        if promise.is_doubted:
            self._prove("creations")
        return promise.was_doubted

    # Creating.

    def prove_exclusive_create(self) -> None:
        self._prove("creations")

    def create(self, path: str, data: Data) -> None:
        promise = self._promise("creations")
        if promise.last_shape is None:  # the caller did not ask for a proof: no other writer makes this file
            self.create_settled(path, data)
            return
        proven = self._prove("creations")
        version = self.create_settled(path, data)
        if version is None:
            shape = None
        else:
            shape = shape_of(version)
        if not promise.note_use(shape, begun_with=proven):
            self._judge(path, version, shape)

    def _judge(self, path: str, version: str | None, shape: Shape | None) -> None:
        """Let a file count that was just created while what was proven was put into doubt, or raise.

        Another shape of the answer does that, and evidence that a writer found (:meth:`doubt`).

        Raises:
            UnsafeStorage: the store does not decide any more. The file was removed again.
            OutcomeUnknown: nothing proves that the file stays, or it could not be removed.
        """
        try:
            proven = self._prove("creations")
            if shape is not None and shape != proven:
                raise self._unsteady()
        except UnsafeStorage as refusal:
            if version is not None and self._take_back(path, version):
                raise UnsafeStorage(f"{refusal}. {path}, which was just created, was removed again") from None
            raise self._unknown_outcome(f"{path} was created", refusal) from refusal
        except StorageError as failure:
            raise self._unknown_outcome(f"{path} was created", failure) from failure

    def _take_back(self, path: str, version: str) -> bool:
        """Remove the version of a file that this process made, so that an older one shows again, if there was any.

        Return whether that was done.
        """
        if shape_of(version) != "versioned":
            return False
        try:
            return self._delete_version(path, version)
        except StorageError as error:
            _LOG.warning(
                "version %s of %s%s could not be removed: %s",
                version,
                self.root,
                path,
                error,
            )
            return False

    def _delete_version(self, path: str, version: str) -> bool:
        """Remove one version of a file for good; return whether this storage can do that. One ``delete``."""
        return False

    # Comparing and setting.

    def prove_compare_and_set(self) -> None:
        self._prove("replacements")

    def compare_and_set(self, path: str, data: Data, expected: Tagged) -> Tagged | None:
        done = super().compare_and_set(path, data, expected)
        promise = self._promise("replacements")
        if done is not None and promise.last_shape is not None and promise.shape_that_counts() is None:
            try:
                self._prove("replacements")
            except StorageError as error:
                raise self._unknown_outcome(f"{path} was replaced", error) from error
        return done

    # Proofs.

    def _prove(self, what: What) -> Shape:
        """Make a proof unless one counts; return the shape of the answers in it.

        Raises:
            UnsafeStorage: the store does not decide.
            StorageError: the storage failed; nothing is proved.
        """
        promise = self._promise(what)
        shape = promise.shape_that_counts()
        if shape is not None:
            return shape
        with promise.proving:
            if (shape := promise.shape_that_counts()) is not None:  # another thread made it meanwhile
                return shape
            for _ in range(_PROOFS):
                promise.begin()
                self._prove_now(what)
                shape = promise.renew()
                if shape is not None:
                    return shape
        raise self._unsteady()

    def _prove_now(self, what: What) -> None:
        """Make a proof, and remove what it wrote."""
        contest: StorageContest
        if what == "creations":
            contest = Creations(self)
        else:
            contest = Replacements(self)
        try:
            rounds = prove(contest, SHORT, f"{SCRATCH_PREFIX}{uuid.uuid4()}/")
        except UnsafeStorage as refusal:
            raise UnsafeStorage(
                f"{self.root}: this store does not keep the promise of {_LACKS[what]}. {refusal}"
            ) from None
        finally:
            contest.clean_up()
        _LOG.debug("%s: %d rounds of racing %s", self.root, rounds, what)

    def _unsteady(self) -> UnsafeStorage:
        return UnsafeStorage(
            f"{self.root}: the store begins or ends to keep versions of files again and again, or two writers win "
            "again and again while it is tested"
        )

    def _unknown_outcome(self, done: str, error: StorageError) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"{self.root}: {done} while the store's answers changed (was versioning switched on, or off?), or let "
            f"another writer win, too. Nothing proves that it stays. Read it before you try again. {error}"
        )
