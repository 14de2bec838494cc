"""Rollback of everything, restore of some: targets, selections, plans (format, section 6)."""
