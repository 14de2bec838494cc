"""Disks and object stores behind one port.

``port`` is what the rest of the code may ask for. Every request passes through ``base``, which counts and retries it,
and mends lost answers. The backends are ``local``, and ``objects`` with ``s3`` and ``blobs``. An object store has to
prove that it decides (``checked``, by ``proof``). ``conformance`` proves a place fit for a lakehouse.
"""

from trinitylake_core.storage.conformance import ConformanceResult, check_conformance
from trinitylake_core.storage.contests import is_scratch, remove_scratch
from trinitylake_core.storage.opening import open_storage, options_for, storage_at
from trinitylake_core.storage.port import Data, DeleteResult, FileInfo, Options, RequestCounts, Storage, Tagged
from trinitylake_core.storage.root_uris import normalise_root, real_root, root_uri, same_place
