"""Lakehouses in which one table is hostile and nine are sound: the tenth is named, and the nine are as if it were not.

``lakehouse`` makes them, and each ``test_*`` looks at them from another side.
"""
