"""PyIceberg's catalog over a lakehouse (``docs/iceberg.md``); the only package that imports PyIceberg.

load_catalog("lake", **{"py-catalog-impl": "trinitylake_core.iceberg.TrinityLakeCatalog", "uri": ROOT})
"""

from trinitylake_core.iceberg.catalog import ALLOWED_LOCATIONS, GROUP_COMMITS, CatalogTransaction, TrinityLakeCatalog

__all__ = ["ALLOWED_LOCATIONS", "GROUP_COMMITS", "CatalogTransaction", "TrinityLakeCatalog"]
