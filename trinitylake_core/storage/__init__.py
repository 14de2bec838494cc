"""Disks and object stores behind one port.

``port`` says what the rest of the code may ask; ``funnel`` is what every request passes through; ``base`` mends
lost answers above it; ``local``, ``s3`` and ``generic`` are the backends; ``probe`` proves a place fit for a lakehouse.
"""

from trinitylake_core.storage.opening import open_storage, options_for
from trinitylake_core.storage.port import Data, DeleteResult, FileInfo, RequestCounts, Storage, Tagged
from trinitylake_core.storage.probe import ProbeResult, probe
from trinitylake_core.storage.roots import normalise_root, real_root, same_place

__all__ = [
    "Data",
    "DeleteResult",
    "FileInfo",
    "ProbeResult",
    "RequestCounts",
    "Storage",
    "Tagged",
    "normalise_root",
    "open_storage",
    "options_for",
    "probe",
    "real_root",
    "same_place",
]
