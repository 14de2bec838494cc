"""The border to PyIceberg: text from outside reaches its loaders, models and updates here, and nowhere else.

PyIceberg lets the properties of a table choose Python code (``py-io-impl``, ``write.py-location-provider.impl``) and
connections (``s3.endpoint``, proxies, roles). The metadata of a table are text that others wrote, so here

* a FileIO is made from the options of the catalog alone;
* a property that names code is refused where it is written, and left out where it is read;
* a property that names a connection is data here, and left out of what other people's clients get;
* whatever PyIceberg and its models raise becomes one error, of constant words, that concerns this text alone.

Contracts in ``pyproject.toml`` and ``tests/core/test_iceberg_border.py`` keep all other modules from going around this
one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, Union, get_args

from pydantic import BaseModel, Field
from pydantic import ValidationError as PydanticError
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import BadRequestError, CommitFailedException, ValidationError
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    read_manifest_list,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, TableMetadataV3, new_table_metadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile
from pyiceberg.table.update import SetStatisticsUpdate
from pyiceberg.table.update import TableUpdate as KnownUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from pyiceberg.view.metadata import ViewMetadata

from trinitylake_core import errors as ours
from trinitylake_core.iceberg import version3
from trinitylake_core.iceberg.errors import words_of
from trinitylake_core.iceberg.reading.metadata_json import JsonObject, bounded_text
from trinitylake_core.iceberg.reading.references import UnreadableTable, decode_metadata, references_in
from trinitylake_core.sizes import LARGEST
from trinitylake_core.tables import full_uri

_Model = TypeVar("_Model", bound=BaseModel)


# -- code and connections ----------------------------------------------------------------------------

_NAMES_CODE: Final = re.compile(r"(?:^|.*[._-])(?:impl|class|factory|credentials?-provider)", re.DOTALL)
_NAMES_CONNECTION: Final = re.compile(r"(?:s3|client|adls|gcs|hdfs|hf|oss)\..*|uri|token|credential", re.DOTALL)
"""What some client of Iceberg connects by, and signs with its own credentials, where the table brings it along."""
_LONG_NUMBER: Final = re.compile(r"(?<![\w.])-?\d{19,}(?![\w.])")
_MOST_DIGITS: Final = len(str(-LARGEST))
_SCHEMES: Final = frozenset({"file", "s3", "gs", "gcs", "az", "abfs", "abfss", "wasb", "wasbs"})
"""Where files of tables may lie. Others of PyIceberg's schemes connect to whatever host the location names."""


def properties_that_name_code(properties: Iterable[str]) -> list[str]:
    """Return those names of properties by which some client of Iceberg chooses a class or a function to call."""
    return sorted(each for each in properties if _NAMES_CODE.fullmatch(each.strip().lower()))


def refuse_code(properties: Iterable[str], of: str) -> None:
    """Refuse properties that name code; ``of`` is the table, view or namespace. Raises ``ValidationError``."""
    found = properties_that_name_code(properties)
    if found:
        raise ValidationError(
            f"the property {found[0]!r} of {of} names code to be run by whoever reads it, and no table, view or "
            "namespace may do that; set it in the configuration of the client that wants it"
        )


def file_io(options: Properties, location: str) -> FileIO:
    """Return the FileIO for files at a location, by the options of the catalog. No request.

    Raises ``InvalidLocation``: it is not absolute, or has a scheme that this catalog does not read.
    """
    scheme, absolute, _ = full_uri(location).partition("://")
    if not absolute:
        raise ours.InvalidLocation(f"location {location!r} is not absolute, so it may mean any place")
    if scheme not in _SCHEMES:
        raise ours.InvalidLocation(f"location {location!r} has a scheme that this catalog neither reads nor writes")
    return load_file_io(options, location)


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Open another catalog, by what its operator configured. What it loads gets a FileIO by these options alone.

    Raises what PyIceberg and the drivers of SQL, REST, Glue and Hive raise.
    """
    catalog = load_catalog(name, **properties)

    def load_by_options(_properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        return load_file_io(catalog.properties, location)

    catalog._load_file_io = load_by_options  # type: ignore[assignment, method-assign]  # noqa: SLF001 - it would ask the table
    return catalog


_ODD_CONTENT: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RecursionError,
    StopIteration,
    TypeError,
    UserWarning,
    ValidationError,
    ValueError,
)
"""What PyIceberg raises for metadata that it does not foresee; a warning, where a process makes those errors."""


def load_from(catalog: Catalog, identifier: Identifier) -> Table:
    """Return a table of another catalog, if this catalog could load it, too.

    Raises:
        ValidationError: its metadata are odd, contradict themselves, or name code; other tables are not concerned.
        NoSuchTableError, FileNotFoundError: it is gone.
        OSError: or what the driver of the catalog raises: the catalog cannot be read.
    """
    try:
        table = catalog.load_table(identifier)
    except _ODD_CONTENT as error:
        raise ValidationError(f"its metadata cannot be read: {words_of(error)}") from None
    refuse_code(table.metadata.properties, "the table")
    refuse_large_numbers(as_json(table.metadata))
    _refuse_contradictions(table.metadata, "its metadata cannot be read")
    return table


# -- errors ------------------------------------------------------------------------------------------

_LOST_RACES: Final = (
    "Cannot add snapshot with sequence number ",
    "Cannot add a snapshot with first row id ",
    "Snapshot with snapshot id ",
    "Statistics with snapshot id ",
    "Partition Statistics with snapshot id ",
)
"""How PyIceberg's models begin to tell that others changed the table since the client read it."""


@contextmanager
def in_our_words(what: str, kind: type[Exception] = ValidationError) -> Iterator[None]:
    """Make one error, of words that may be shown, of whatever PyIceberg and its models raise in this block.

    ``what`` names the text that they work on, and ``kind`` is the error. Errors of ours pass.

    Raises:
        CommitFailedException: the table is not what the client has read; it may read again and retry.
        NotImplementedError: PyIceberg cannot do this with the table's format version.
        ValidationError: or ``kind``: everything else, also ``RecursionError``: it concerns this text alone.
    """
    try:
        yield
    except ours.TrinityLakeError:
        raise
    except CommitFailedException as error:
        raise CommitFailedException(words_of(error)) from None
    except NotImplementedError:
        raise NotImplementedError(f"{what}: PyIceberg does not implement this (tables of format version 3)") from None
    except Exception as error:  # noqa: BLE001 - text from outside may make these models raise anything
        words = words_of(error)
        if words.startswith(_LOST_RACES):
            raise CommitFailedException(f"{words}: another commit came first; read the table again and retry") from None
        raise kind(f"{what}: {words}") from None


# -- metadata files ----------------------------------------------------------------------------------


class OpenBlob(BlobMetadata):
    """A blob of statistics of any type: the specification leaves the types open, PyIceberg knows two."""

    type: str  # type: ignore[assignment]


class OpenStatistics(StatisticsFile):
    """A file of statistics with blobs of any type."""

    blob_metadata: list[OpenBlob] = Field(alias="blob-metadata")  # type: ignore[assignment]


def table_metadata(data: bytes, location: str) -> TableMetadata:
    """Return the table metadata in the file at a location, also with properties that name code.

    Raises ``ValidationError``: the file is no such metadata, too large, or contradicts itself.
    """
    what = f"{location} is not a file of table metadata"
    document = _document(data, location)
    with in_our_words(what):
        version3.refuse_lost_parts(document)
        try:
            metadata = _model_of(document)
        except PydanticError as error:
            if not _is_about_blobs(error):
                raise
            metadata = _with_open_statistics(_document(data, location))  # the model may have changed the other one
    _refuse_contradictions(metadata, what)
    return metadata


def revalidate(metadata: TableMetadata) -> TableMetadata:
    """Return metadata that updates have built, if they are whole. Raises ``ValidationError``."""
    return _model_of(metadata.model_dump())


def _model_of(document: JsonObject) -> TableMetadata:
    return TableMetadataUtil.parse_obj(version3.with_passed_types(document))


def _document(data: bytes, location: str) -> JsonObject:
    """Return table metadata as JSON, of which every job can tell the files. Raises ``ValidationError``."""
    try:
        document = decode_metadata(data, location)
        references_in(document, location)
    except UnreadableTable as error:
        raise ValidationError(f"{location} {str(error).removeprefix('it ')}") from None
    return document


def new_table(
    name: str, schema: Schema, spec: PartitionSpec, order: SortOrder, location: str, properties: Properties
) -> TableMetadata:
    """Return the metadata of a new table.

    Raises ``ValidationError``: parts that do not fit each other, or properties that name code.
    """
    refuse_code(properties, f"table {name}")
    with in_our_words(f"the new table {name}"):
        made = new_table_metadata(schema, spec, order, location, dict(properties))
        return version3.complete_new(made, schema)


def view_metadata(data: bytes, location: str) -> ViewMetadata:
    """Return the view metadata in the file at a location, also with properties that name code.

    Raises ``ValidationError``: the file is no such metadata, or too large.
    """
    with in_our_words(f"{location} is not a file of view metadata"):
        found = version3.with_passed_types(json.loads(bounded_text(data)))
        return ViewMetadata.model_validate(found)


_Metadata = TypeVar("_Metadata", TableMetadata, ViewMetadata)


def without_code(metadata: _Metadata) -> _Metadata:
    """Return metadata without those properties that name code: nobody who reads them here shall run it."""
    return _leave_out(metadata, properties_that_name_code(metadata.properties))


def _leave_out(metadata: _Metadata, names: Sequence[str]) -> _Metadata:
    if not names:
        return metadata
    kept = {name: value for name, value in metadata.properties.items() if name not in names}
    return metadata.model_copy(update={"properties": kept})


def as_json_for_clients(metadata: _Metadata) -> str:
    """Return metadata as clients get them: PyIceberg's would connect by properties of the table, with its credentials.

    Raises ``ValidationError``: a value that has no JSON.
    """
    named = [each for each in metadata.properties if _NAMES_CONNECTION.fullmatch(each.strip().lower())]
    return as_json(_leave_out(metadata, named))


def refuse_large_numbers(text: str) -> None:
    """Refuse metadata with a number that other clients cannot hold: theirs have 64 bits. Raises ``ValidationError``."""
    if not any(map(_is_too_large, _LONG_NUMBER.findall(text))):
        return

    def parse(digits: str) -> int:  # what was found may stand in a text
        if _is_too_large(digits):
            raise ValidationError(f"the metadata hold a number beyond {LARGEST:,}, which other clients cannot read")
        return 0

    json.loads(text, parse_int=parse)


def _is_too_large(digits: str) -> bool:
    return len(digits) > _MOST_DIGITS or not -LARGEST - 1 <= int(digits) <= LARGEST


def as_json(metadata: TableMetadata | ViewMetadata) -> str:
    """Return metadata as the JSON of their file. Raises ``ValidationError``: a value that has no JSON."""
    with in_our_words("the metadata"):
        if isinstance(metadata, TableMetadataV3):
            return version3.text_of(metadata)
        # Blobs of a type that PyIceberg does not know would make it warn.
        return metadata.model_dump_json(exclude_none=True, by_alias=True, warnings=False)


def _is_about_blobs(error: PydanticError) -> bool:
    """Whether nothing but types of blobs kept PyIceberg's model from taking the metadata."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return all("statistics" in each["loc"] and each["loc"][-1] == "type" for each in found)


def _with_open_statistics(document: JsonObject) -> TableMetadata:
    """Return table metadata whose statistics hold blobs of types that PyIceberg does not know."""
    statistics = [OpenStatistics.model_validate(each) for each in document.pop("statistics")]
    metadata = _model_of(document)
    return metadata.model_copy(update={"statistics": statistics})


def _refuse_contradictions(metadata: TableMetadata, what: str) -> None:
    """Refuse metadata that name a part of themselves which is not there. Raises ``ValidationError``."""
    missing = None
    if metadata.default_spec_id not in metadata.specs():
        missing = f"its default-spec-id {metadata.default_spec_id} is not among its partition-specs"
    elif metadata.schema_by_id(metadata.current_schema_id) is None:
        missing = f"its current-schema-id {metadata.current_schema_id} is not among its schemas"
    elif metadata.current_snapshot_id is not None and metadata.current_snapshot() is None:
        missing = f"its current-snapshot-id {metadata.current_snapshot_id} is not among its snapshots"
    if missing:
        raise ValidationError(f"{what}: {missing}")


# -- manifests ---------------------------------------------------------------------------------------

PARQUET: Final = FileFormat.PARQUET
STATUS_ADDED: Final = ManifestEntryStatus.ADDED
STATUS_EXISTING: Final = ManifestEntryStatus.EXISTING
STATUS_DELETED: Final = ManifestEntryStatus.DELETED


def manifests_in(data_of_list: FileIO, location: str) -> list[ManifestFile]:
    """Return the manifests in a manifest list. REQUIRES: our own reader has read the same content, in its bounds.

    Raises ``ValidationError``: PyIceberg cannot read it.
    """
    with in_our_words("a manifest list of the table"):
        return list(read_manifest_list(data_of_list.new_input(location)))


def entries_in(files: FileIO, manifest: ManifestFile) -> list[ManifestEntry]:
    """Return the entries of a manifest, without DELETED ones. REQUIRES, and raises, as :func:`manifests_in`."""
    with in_our_words("a manifest of the table"):
        return list(manifest.fetch_manifest_entry(files, discard_deleted=True))


def holds_deletes(manifest: ManifestFile) -> bool:
    """Whether the files in a manifest are delete files."""
    return bool(manifest.content == ManifestContent.DELETES)


def new_entry(status: ManifestEntryStatus, snapshot_id: int | None, entry: ManifestEntry) -> ManifestEntry:
    """Return an entry of the same file with another status, as of a snapshot."""
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )


def new_data_file(location: str, size: int, spec_id: int, partition: Any, figures: Mapping[str, Any]) -> DataFile:
    """Return a new Parquet file of a partition, with the figures of its columns."""
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=PARQUET,
        partition=partition,
        file_size_in_bytes=size,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **figures,
    )
    file.spec_id = spec_id  # no field of the file: it stands in the manifest
    return file


def added_entry(snapshot_id: int, file: Any) -> ManifestEntry:
    """Return the entry of a new data file; its sequence number will be that of its snapshot."""
    return ManifestEntry.from_args(
        status=STATUS_ADDED, snapshot_id=snapshot_id, sequence_number=None, file_sequence_number=None, data_file=file
    )


def write_entries(
    metadata: TableMetadata, spec_id: int, entries: Iterable[ManifestEntry], snapshot_id: int, files: FileIO, to: str
) -> ManifestFile:
    """Write a manifest of data files by one partition spec. Raises ``ValidationError``."""
    with in_our_words("a new manifest of the table"):
        spec = metadata.specs()[spec_id]
        writer = write_manifest(
            metadata.format_version, spec, schema_of_spec(metadata, spec), files.new_output(to), snapshot_id, "deflate"
        )
        with writer:
            for entry in entries:
                writer.add_entry(entry)
        return writer.to_manifest_file()


def write_list(metadata: TableMetadata, manifests: Iterable[ManifestFile], snapshot: Snapshot, files: FileIO) -> None:
    """Write the manifest list of a snapshot, to the place that it names. Raises ``ValidationError``."""
    with in_our_words("a new manifest list of the table"):
        writer = write_manifest_list(
            format_version=metadata.format_version,
            output_file=files.new_output(snapshot.manifest_list),
            snapshot_id=snapshot.snapshot_id,
            parent_snapshot_id=snapshot.parent_snapshot_id,
            sequence_number=snapshot.sequence_number,
            avro_compression="deflate",
        )
        with writer:
            writer.add_manifests(list(manifests))


def schema_of_spec(metadata: TableMetadata, spec: PartitionSpec) -> Schema:
    """Return the newest schema that has all columns that a partition spec names: one may have been dropped since."""
    wanted = {each.source_id for each in spec.fields}
    schemas = [metadata.schema(), *reversed(metadata.schemas)]
    return next((each for each in schemas if wanted <= set(each.field_ids)), schemas[0])


# -- requests ----------------------------------------------------------------------------------------


class SetOpenStatistics(SetStatisticsUpdate):
    """Set a file of statistics with blobs of any type."""

    statistics: OpenStatistics


def _open_updates() -> Any:
    kinds = []
    for each in get_args(get_args(KnownUpdate)[0]):
        kinds.append(SetOpenStatistics if each is SetStatisticsUpdate else each)
    return Annotated[Union[tuple(kinds)], Field(discriminator="action")]  # noqa: UP007 - the members are computed


if TYPE_CHECKING:
    TableUpdate = KnownUpdate
else:
    TableUpdate = _open_updates()
    """PyIceberg's updates of tables, with statistics whose blobs may be of any type."""


def validate_as(model: type[_Model], value: object) -> _Model:
    """Return a JSON value as a model. Raises ``ValidationError``: it does not fit."""
    with in_our_words(f"this is no {model.__name__}"):
        opened = version3.with_passed_types(value) if isinstance(value, dict) else value
        return model.model_validate(opened)


def request_of(model: type[_Model], body: Mapping[str, Any]) -> _Model:
    """Return the body of a request as a model. Raises ``BadRequestError``: it does not fit."""
    with in_our_words("the request is not what the specification says", BadRequestError):
        return model.model_validate(version3.with_passed_types(body))
