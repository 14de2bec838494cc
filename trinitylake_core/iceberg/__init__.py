"""PyIceberg's catalog over a lakehouse (``docs/iceberg.md``); the only package that imports PyIceberg.

load_catalog("lake", **{"py-catalog-impl": "trinitylake_core.iceberg.TrinityLakeCatalog", "uri": ROOT})
"""

from trinitylake_core.iceberg.catalog import GROUP_COMMITS, TrinityLakeCatalog
from trinitylake_core.iceberg.transaction import CatalogTransaction

__all__ = ["GROUP_COMMITS", "CatalogTransaction", "TrinityLakeCatalog"]
