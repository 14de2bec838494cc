"""What a process knows of a store's promise to decide, and for how long that counts.

A proof ages. A bucket can be changed while writers run: on some stores, preconditions are honoured until versioning is
switched on, and ignored from then on. Every answer tells whether the store keeps versions, so a change of that is a
change of the *shape* of answers, and ends what was proven.
"""

from __future__ import annotations

import threading
import time
from typing import Final, Literal

Shape = Literal["plain", "null", "versioned"]
"""What answers say of versions: nothing; that the bucket has kept some; the version of this object."""

_LASTS_SECONDS: Final = 600.0
_LASTS_USES: Final = 1000
"""So long, and for so many files, a proof counts. Both bound what a store that changed silently can do."""
_NULL: Final = "null"


def shape_of(version: str | None) -> Shape:
    """Return the shape of an answer by the version ID in it."""
    if not version:
        return "plain"
    if version == _NULL:
        return "null"
    return "versioned"


class Promise:
    """Whether one bucket is known to decide. Thread-safe; shared by all storages of this process."""

    def __init__(self) -> None:
        self.proving = threading.Lock()
        """Held while the next proof is made: the others wait for it."""
        self._state = threading.Lock()
        self._shape: Shape | None = None
        self._ends_at = 0.0
        self._uses_left = 0
        self._is_void = False
        self._doubted_meanwhile = False
        self.is_doubted = False
        """Whether there is evidence that the store does not decide, and no proof has been begun since."""
        self.was_doubted = False
        """Whether there ever was such evidence."""
        self._evidence: set[str] = set()
        self._shapes_read: set[Shape] = set()
        self._shapes_met: set[Shape] = set()
        """Those that were read for the first time since the proof began, and differ from what was proven before."""
        self._shapes_written: set[Shape] = set()

    @property
    def last_shape(self) -> Shape | None:
        """The shape of answers in the last proof that succeeded, however long ago; ``None`` if there was none."""
        return self._shape

    def shape_that_counts(self) -> Shape | None:
        """Return the shape of answers that is proven now; ``None`` if a proof is due."""
        is_young = self._uses_left > 0 and time.monotonic() < self._ends_at
        if is_young and not self._is_void:
            return self._shape
        return None

    def begin(self) -> None:
        """Note that a proof begins. REQUIRES: ``proving`` is held."""
        with self._state:
            self._shapes_written.clear()
            self._shapes_met.clear()
            self._doubted_meanwhile = False

    def doubt(self, about: str | None) -> None:
        """Note evidence that the store does not decide: what was proven before counts no more.

        ``about`` is the file that shows it. Whoever meets that again says nothing new: it ends no proof that is under
        way, or readers of one lost file would keep all writers from theirs.
        """
        with self._state:
            self.is_doubted = self._is_void = self.was_doubted = True
            if about is None or about not in self._evidence:
                self._doubted_meanwhile = True
            if about is not None:
                self._evidence.add(about)

    def renew(self) -> Shape | None:
        """Note that the proof succeeded; return the shape of answers in it.

        ``None``, and nothing is proven, if their shape changed while the proof was made, or evidence came in: rounds
        that were over by then say nothing about it. REQUIRES: ``proving`` is held.
        """
        with self._state:
            shapes = self._shapes_written | self._shapes_met
            if len(shapes) != 1 or self._doubted_meanwhile:
                return None
            (self._shape,) = shapes
            self._ends_at = time.monotonic() + _LASTS_SECONDS
            self._uses_left = _LASTS_USES
            self.is_doubted = self._is_void = False
            return self._shape

    def note_use(self, shape: Shape | None, begun_with: Shape) -> bool:
        """Note one more file that the store decided about; return whether a proof covers it.

        Args:
            shape: the shape of the store's answer, ``None`` if it was lost and the file was read back instead.
            begun_with: the shape that was proven when the request was sent.
        """
        with self._state:
            self._uses_left -= 1
            if shape is None:  # reading it back was noted, too
                return not self._is_void
            return shape == begun_with and not self.is_doubted

    def note_write(self, version: str | None) -> None:
        """Note the version ID in the answer to a write: another shape than the proven one ends the proof."""
        shape = shape_of(version)
        with self._state:
            self._shapes_written.add(shape)
            if shape != self._shape:
                self._is_void = True

    def note_read(self, version: str | None) -> None:
        """Note the version ID in the answer to a read.

        A shape that was never read before may be that of a file which was written after the bucket was changed: what is
        built on it needs a new proof. Files that are older than the change keep their shape, so each shape counts once.
        """
        shape = shape_of(version)
        if shape in self._shapes_read:
            return
        with self._state:
            self._shapes_read.add(shape)
            if shape != self._shape:
                self._is_void = True
                self._shapes_met.add(shape)
