"""Version 0: the first root of a lakehouse (format, section 6)."""

from __future__ import annotations

from trinitylake_core import spec
from trinitylake_core.commits.acknowledge import confirm_commit, remove_quietly
from trinitylake_core.commits.changes import commit_summary, definition_rows
from trinitylake_core.commits.commit import Draft, finished, new_id, now_millis
from trinitylake_core.definitions import LakehouseDef, encode
from trinitylake_core.errors import UnsafeStorage
from trinitylake_core.locations import lakehouse_def_path
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.nodefile import encode as encode_node
from trinitylake_core.versions import ObjectCounts, Root, Versions


def create_empty(versions: Versions, message: LakehouseDef) -> Root:
    """Create version 0 of a lakehouse without objects. Costs and raises as :func:`create_first`."""
    node = Node(subtree_keys=0, subtree_messages=0)
    draft = Draft(node, spec.OP_CREATE, new_id(), commit_summary(), counts=ObjectCounts())
    return create_first(versions, message, draft)


def create_first(versions: Versions, message: LakehouseDef, draft: Draft) -> Root:
    """Create version 0 from a draft whose non-root nodes are written already.

    One ``put``, one ``create``; then the hint, the boundary and the next version, as every writer looks at them.

    Raises:
        AlreadyExists: there is a version 0, of another lakehouse.
        OutcomeUnknown: the boundary lies beyond version 0: another lakehouse was created and expired its first
            versions in the meantime, or an export to this place has begun.
        UnsafeStorage, StorageError.
    """
    storage = versions.storage
    path, data = lakehouse_def_path(), encode(message)
    storage.write_many([(path, data)])
    try:
        storage.prove_exclusive_create(path, data)
    except UnsafeStorage:
        remove_quietly(storage, [path])
        raise
    draft.system = definition_rows(path, data) | draft.system
    node = finished(None, draft, now_millis())
    content = encode_node(node, message.order, versions.path(0))
    storage.create(versions.path(0), content)
    node.nbytes = len(content)
    root = Root(0, versions.path(0), node, content)
    confirm_commit(versions, root)
    return root
