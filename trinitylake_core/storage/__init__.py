"""Disks and object stores behind one port.

``port`` says what the rest of the code may ask; ``base`` is the funnel every request passes through;
``local``, ``s3`` and ``generic`` are the backends; ``probe`` proves a place fit for a lakehouse.
"""

from trinitylake_core.storage.opening import open_storage
from trinitylake_core.storage.port import Data, DeleteResult, FileInfo, RequestCounts, Storage
from trinitylake_core.storage.probe import ProbeResult, probe
from trinitylake_core.storage.roots import normalise_root

__all__ = [
    "Data",
    "DeleteResult",
    "FileInfo",
    "ProbeResult",
    "RequestCounts",
    "Storage",
    "normalise_root",
    "open_storage",
    "probe",
]
