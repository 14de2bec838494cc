"""Transactions: changes to the catalog that become one version, or none (format, section 6)."""
