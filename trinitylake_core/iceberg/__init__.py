"""PyIceberg's catalog over a lakehouse (``docs/iceberg.md``); the only package that imports PyIceberg.

load_catalog("lake", **{"py-catalog-impl": "trinitylake_core.iceberg.TrinityLakeCatalog", "uri": ROOT})

PyIceberg, which takes half a second and need not be installed, is imported when the catalog is first asked for: modules
of this package that do without it are used where definitions of Dagster are loaded.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trinitylake_core.iceberg.catalog import (
        ALLOWED_LOCATIONS,
        GROUP_COMMITS,
        CatalogTransaction,
        TrinityLakeCatalog,
    )

__all__ = ["ALLOWED_LOCATIONS", "GROUP_COMMITS", "CatalogTransaction", "TrinityLakeCatalog"]


def __getattr__(name: str) -> Any:
    """Return a name of the catalog's module, which is imported now."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trinitylake_core.iceberg import catalog  # noqa: PLC0415 - as above

    return getattr(catalog, name)
