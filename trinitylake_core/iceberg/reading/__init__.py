"""Reading files that other programs wrote: table metadata, manifest lists and manifests. Nothing here trusts them.

Every number that a file contains is compared with what is there before it is used, and every size has a limit
(:mod:`~trinitylake_core.iceberg.reading.limits`). Python's own bounds checks are below that, so no file crashes the
process. No module here needs PyIceberg.
"""
