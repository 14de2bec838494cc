"""Iceberg tables as assets of their own, where a stanza names them: ``assets: ["sales.*"]``.

The key of ``sales.orders`` is ``sales/orders``, as dbt's sources have it by default, so that the lineage of dbt and of
other tools meets these tables. Engines write them, not Dagster: they are external assets. The sensor of the lakehouse
records each new version of a table with its rows, schema and snapshot, all of it from the definition in the catalog.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import dagster as dg
from dagster._core.definitions.definitions_load_context import DefinitionsLoadContext, DefinitionsLoadType

from dagster_project.config.settings import LakehouseSettings
from dagster_project.config.values import OWNER
from dagster_project.metadata.reports import keep_known
from dagster_project.resources import open_for_poll
from pipelines.engine.deadline_pool import DeadlinePool
from trinitylake_core import Corrupt, Lakehouse, NotFound, TrinityLakeError
from trinitylake_core.catalog import ObjectEntry
from trinitylake_core.definitions import TableDef
from trinitylake_core.keys import TABLE
from trinitylake_core.object_info import TableInfo
from trinitylake_core.recovery.patterns import Pattern
from trinitylake_core.recovery.selection import matching
from trinitylake_core.tables import SNAPSHOT_BYTES, SNAPSHOT_ROWS, whole_number

MOST: Final = 500
"""So many tables of a lakehouse are assets, and are recorded by one tick: Dagster takes 10 ms for each."""
_LISTING_SECONDS: Final = 10.0
"""So long definitions wait for the names of the tables; Dagster gives them up after a minute or three."""
_LISTINGS: Final = DeadlinePool()
_OWNER_PROPERTY: Final = "owner"
_DATA_VERSION: Final = "dagster/data_version"
_IS_OURS: Final = "dagster/data_version_is_user_provided"
_log: Final = logging.getLogger(__name__)


def specs_of(lakehouses: Sequence[LakehouseSettings]) -> list[dg.AssetSpec]:
    """Return the tables that the stanzas name, as external assets. Reads storage only where a stanza names some.

    Not where a run loads the definitions again: it materialises none of these. A lakehouse that does not answer has
    none until definitions are loaded the next time, and a warning says so; the same holds for a table whose key
    another lakehouse has.
    """
    is_run = DefinitionsLoadContext.get().load_type is DefinitionsLoadType.RECONSTRUCTION
    wanted = {each.name: each for each in lakehouses if each.assets and not is_run}
    work = ((name, partial(_read_specs, each)) for name, each in wanted.items())
    by_lakehouse: dict[str, list[dg.AssetSpec]] = {}
    for outcome in _LISTINGS.each(work, _LISTING_SECONDS, 2 * _LISTING_SECONDS):
        if outcome.error is None:
            by_lakehouse[outcome.name] = outcome.get()
        else:
            text = "the tables of lakehouse %s are no assets until definitions are loaded again: %s"
            _log.warning(text, outcome.name, outcome.error)
    found: dict[dg.AssetKey, dg.AssetSpec] = {}
    for name in wanted:
        for spec in by_lakehouse.get(name, ()):
            if found.setdefault(spec.key, spec) is not spec:
                key = spec.key.to_user_string()
                _log.warning("%s of lakehouse %s is no asset: another lakehouse has this key", key, name)
    return list(found.values())


def _read_specs(settings: LakehouseSettings) -> list[dg.AssetSpec]:
    """Return the tables of a lakehouse. The names of its tables, and one ``get`` for each that is meant."""
    lake = open_for_poll(settings)
    return [_spec(settings, each) for each in _read_infos(lake, list_tables(lake, settings))]


def _spec(settings: LakehouseSettings, info: TableInfo) -> dg.AssetSpec:
    owner = info.properties.get(_OWNER_PROPERTY, "")
    owners = [owner] if OWNER.fullmatch(owner) else list(settings.owners)
    return dg.AssetSpec(
        key_of(info.namespace, info.name),
        description=info.properties.get("comment") or f"An Iceberg table of lakehouse {settings.name!r}.",
        metadata=_standard_metadata(info),
        group_name=settings.slug,
        owners=owners,
        kinds={"iceberg"},
    )


def key_of(namespace: str, name: str) -> dg.AssetKey:
    """Return the key of a table: the parts of its namespace, and its name."""
    return dg.AssetKey([*namespace.split("."), name])


def list_tables(lake: Lakehouse, settings: LakehouseSettings) -> list[ObjectEntry]:
    """Return the tables that the patterns of a stanza mean, each once, :data:`MOST` at the most.

    Reads the parts of the tree with the beginnings of the patterns.
    """
    found: dict[str, ObjectEntry] = {}
    for text in settings.assets:
        for each in matching(lake.nodes, lake.root_node.node, lake.codec, Pattern(text), (TABLE,)):
            found[each.key] = each
            if len(found) == MOST:
                return list(found.values())
    return list(found.values())


def new_versions(
    lake: Lakehouse, settings: LakehouseSettings, since: int | None, after: str | None = None
) -> tuple[list[dg.AssetMaterialization], str | None]:
    """Return what to record of the tables that changed after a version; of all without one, or once it has expired.

    At most :data:`MOST` of those whose keys come ``after`` one, and the last of these keys if there are more of them.
    The difference of two versions, and one ``get`` for each table. Tables that were dropped are not recorded.
    """
    entries = _find_changed(lake, settings, since)
    if entries is None:
        entries = list_tables(lake, settings)
    left = [each for each in entries if after is None or each.key > after]
    now = left[:MOST]
    found = [_describe_version(lake, each) for each in _read_infos(lake, now)]
    if len(left) == len(now):
        return found, None
    return found, now[-1].key


def _find_changed(lake: Lakehouse, settings: LakehouseSettings, since: int | None) -> list[ObjectEntry] | None:
    """Return the tables of the patterns that changed after a version; ``None`` if nobody can say."""
    if since is None or since > lake.version:
        return None
    patterns = [Pattern(text) for text in settings.assets]
    found: list[ObjectEntry] = []
    try:
        for each in lake.diff(since, lake):
            is_meant = any(pattern.matches(each.namespace, each.name) for pattern in patterns)
            if is_meant and each.kind == TABLE and each.new_path is not None:
                found.append(ObjectEntry(each.kind, each.namespace, each.name, each.key, each.new_path))
    except NotFound:  # the version has expired
        return None
    return found


def _read_infos(lake: Lakehouse, entries: Iterable[ObjectEntry]) -> Iterator[TableInfo]:
    """Yield the definitions of tables. One ``get`` each, several at the same time.

    One that cannot be read is left out, as Dagster's log says: `verify` reports it, and its table alone is concerned.
    """

    def read(entry: ObjectEntry) -> tuple[ObjectEntry, object]:
        try:
            return entry, lake.definition_of(entry)
        except (Corrupt, NotFound) as error:
            _log.warning("table %s.%s is not recorded: %s", entry.namespace, entry.name, error)
            return entry, None

    for entry, definition in lake.storage.map(iter(entries), read):
        if isinstance(definition, TableDef):
            yield TableInfo(entry.namespace, str(entry.name), lake.root, definition)


def _describe_version(lake: Lakehouse, info: TableInfo) -> dg.AssetMaterialization:
    facts = info.format_properties
    snapshot = info.snapshot_id
    metadata = _standard_metadata(info) | keep_known(
        **{"dagster/row_count": whole_number(facts.get(SNAPSHOT_ROWS, ""))},
        bytes=whole_number(facts.get(SNAPSHOT_BYTES, "")),
        snapshot=None if snapshot is None else str(snapshot),  # more digits than a browser's numbers have
        owner=info.properties.get(_OWNER_PROPERTY),
        version=lake.version,
    )
    data_version = str(snapshot) if snapshot is not None else f"version {lake.version}"
    tags = {_DATA_VERSION: data_version, _IS_OURS: "true"}
    return dg.AssetMaterialization(asset_key=key_of(info.namespace, info.name), metadata=metadata, tags=tags)


def _standard_metadata(info: TableInfo) -> dict[str, Any]:
    """Return the metadata whose names Dagster knows. A schema of a newer release is left out."""
    found: dict[str, Any] = {"dagster/table_name": f"{info.namespace}.{info.name}"}
    with suppress(TrinityLakeError):
        found["dagster/column_schema"] = dg.TableSchema(
            columns=[
                dg.TableColumn(each.name, str(each.type), constraints=dg.TableColumnConstraints(nullable=each.nullable))
                for each in info.schema
            ]
        )
    with suppress(TrinityLakeError):
        if info.location is not None:
            found["dagster/uri"] = info.location
    return found
