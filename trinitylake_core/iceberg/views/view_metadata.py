"""What a commit changes in the metadata of a view, by the rules of Iceberg's view specification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

from pydantic import Field
from pyiceberg.exceptions import CommitFailedException, ValidationError
from pyiceberg.schema import Schema
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssignUUIDUpdate,
    RemovePropertiesUpdate,
    SetLocationUpdate,
    SetPropertiesUpdate,
    UpgradeFormatVersionUpdate,
)
from pyiceberg.typedef import IcebergBaseModel
from pyiceberg.view.metadata import ViewHistoryEntry, ViewMetadata, ViewVersion

from trinitylake_core.iceberg.border import validate_as
from trinitylake_core.iceberg.schemas import schema_meaning

_LAST_ADDED: Final = -1
_HISTORY: Final = "version.history.num-entries"
_DROP_DIALECT: Final = "replace.drop-dialect.allowed"
_KEPT: Final = 10


class AddViewVersion(IcebergBaseModel):
    """Add a version; it is current only after another update."""

    action: Literal["add-view-version"] = "add-view-version"
    version: ViewVersion = Field(alias="view-version")


class SetCurrentViewVersion(IcebergBaseModel):
    """Make a version the current one; -1 is the one that this commit added last."""

    action: Literal["set-current-view-version"] = "set-current-view-version"
    version_id: int = Field(alias="view-version-id")


class AssertViewUUID(IcebergBaseModel):
    """The view must still be the one that the client has read."""

    type: Literal["assert-view-uuid"] = "assert-view-uuid"
    uuid: str

    def validate_view(self, metadata: ViewMetadata) -> None:
        """Raise ``CommitFailedException`` if the view is another one."""
        if metadata.view_uuid != self.uuid:
            raise CommitFailedException(
                f"Requirement failed: view UUID does not match: expected {metadata.view_uuid} != {self.uuid}"
            )


ViewUpdate = Annotated[
    AssignUUIDUpdate
    | UpgradeFormatVersionUpdate
    | AddSchemaUpdate
    | SetLocationUpdate
    | SetPropertiesUpdate
    | RemovePropertiesUpdate
    | AddViewVersion
    | SetCurrentViewVersion,
    Field(discriminator="action"),
]
"""What a client may change of a view."""


def set_by(updates: Sequence[ViewUpdate]) -> list[str]:
    """Return the names of the properties that updates set."""
    names: list[str] = []
    for each in updates:
        if isinstance(each, SetPropertiesUpdate):
            names += each.updates
    return names


def update_metadata(metadata: ViewMetadata, updates: Sequence[ViewUpdate], millis: int) -> ViewMetadata:
    """Return the metadata after the updates of one commit, at ``millis`` by the log of versions.

    IDs of schemas and versions that are taken are assigned again, as two clients that replace a view at the same time
    choose the same ones. Raises ``ValidationError``: an update that is impossible, or loses a dialect.
    """
    change = _Change(metadata, millis)
    for update in updates:
        change.apply(update)
    return change.result()


class _Change:
    def __init__(self, metadata: ViewMetadata, millis: int) -> None:
        self._base = metadata
        self._now = metadata
        self._millis = millis
        self._last_schema: int | None = None
        self._added: list[int] = []
        """The versions that were added. Later updates may name the last one, and the last schema, by -1."""

    def apply(self, update: ViewUpdate) -> None:
        now = self._now
        match update:
            case AssignUUIDUpdate():
                if str(update.uuid) != now.view_uuid:
                    raise ValidationError(f"Cannot reassign uuid of view {now.view_uuid}")
            case UpgradeFormatVersionUpdate():
                if update.format_version != now.format_version:
                    raise ValidationError(f"Unsupported format version of a view: {update.format_version}")
            case AddSchemaUpdate():
                self._add_schema(update.schema_)
            case SetLocationUpdate():
                self._set(location=update.location.rstrip("/"))
            case SetPropertiesUpdate():
                self._set(properties=now.properties | update.updates)
            case RemovePropertiesUpdate():
                kept = {key: value for key, value in now.properties.items() if key not in update.removals}
                self._set(properties=kept)
            case AddViewVersion():
                self._add_version(update.version)
            case SetCurrentViewVersion():
                self._make_current(update.version_id)

    def result(self) -> ViewMetadata:
        """Return the metadata with as many versions as its properties allow."""
        now = self._now
        if now.properties.get(_DROP_DIALECT, "false").lower() != "true":
            lost = ", ".join(sorted(_dialects(current(self._base)) - _dialects(current(now))))
            if lost:
                text = f"Cannot replace view due to loss of view dialects ({_DROP_DIALECT}=false): {lost}"
                raise ValidationError(text)
        text = now.properties.get(_HISTORY, str(_KEPT))
        if not (text.isascii() and text.isdigit() and int(text) > 0):
            raise ValidationError(f"{_HISTORY} must be positive but was {text}")
        kept = max(int(text), len(self._added))
        if len(now.versions) <= kept:
            return now
        others = sorted(each.version_id for each in now.versions if each.version_id != now.current_version_id)
        retained = {now.current_version_id, *others[len(others) - kept + 1 :]}
        log: list[ViewHistoryEntry] = []
        for entry in now.version_log:
            log = [*log, entry] if entry.version_id in retained else []
        self._set(versions=[each for each in now.versions if each.version_id in retained], version_log=log)
        return self._now

    def _set(self, **fields: object) -> None:
        self._now = self._now.model_copy(update=fields)

    def _add_schema(self, schema: Schema) -> None:
        same = (each.schema_id for each in self._now.schemas if schema_meaning(each) == schema_meaning(schema))
        self._last_schema = next(same, None)
        if self._last_schema is None:
            self._last_schema = max((each.schema_id for each in self._now.schemas), default=-1) + 1
            self._set(schemas=[*self._now.schemas, schema.model_copy(update={"schema_id": self._last_schema})])

    def _add_version(self, version: ViewVersion) -> None:
        """Add a version, with a number of its own; one with the same content as an older one is that one again."""
        if version.schema_id == _LAST_ADDED:
            version = version.model_copy(update={"schema_id": self._last_schema})
        if all(each.schema_id != version.schema_id for each in self._now.schemas):
            raise ValidationError(f"Cannot add version with unknown schema: {version.schema_id}")
        refuse_repeated_dialects(version)
        same = next((each for each in self._now.versions if _content(each) == _content(version)), None)
        if same is not None:
            self._added.append(same.version_id)
            return
        highest = max(each.version_id for each in self._now.versions)
        version = version.model_copy(update={"version_id": max(version.version_id, highest + 1)})
        self._set(versions=[*self._now.versions, version])
        self._added.append(version.version_id)

    def _make_current(self, number: int) -> None:
        if number == _LAST_ADDED:
            if not self._added:
                raise ValidationError("Cannot set last version id: no version has been added")
            number = self._added[-1]
        version = next((each for each in self._now.versions if each.version_id == number), None)
        if version is None:
            raise ValidationError(f"Cannot set current version to unknown version: {number}")
        if number == self._now.current_version_id:
            return
        millis = version.timestamp_ms if number in self._added else self._millis
        entry = validate_as(ViewHistoryEntry, {"timestamp-ms": millis, "version-id": number})
        self._set(current_version_id=number, version_log=[*self._now.version_log, entry])


def current(metadata: ViewMetadata) -> ViewVersion:
    """Return the current version of a view. Raises ``ValidationError`` where there is none."""
    for each in metadata.versions:
        if each.version_id == metadata.current_version_id:
            return each
    raise ValidationError(f"the current version of the view, {metadata.current_version_id}, is not among its versions")


def schema_of(metadata: ViewMetadata, number: int) -> Schema:
    """Return the schema of this number. Raises ``ValidationError`` where there is none."""
    for each in metadata.schemas:
        if each.schema_id == number:
            return each
    raise ValidationError(f"the view has no schema {number}")


def refuse_repeated_dialects(version: ViewVersion) -> None:
    """Refuse two queries in one dialect. Raises ``ValidationError``."""
    seen: set[str] = set()
    for each in version.representations:
        dialect = each.root.dialect.lower()
        if dialect in seen:
            raise ValidationError(f"Invalid view version: Cannot add multiple queries for dialect {dialect}")
        seen.add(dialect)


def _dialects(version: ViewVersion) -> set[str]:
    return {each.root.dialect.lower() for each in version.representations}


def _content(version: ViewVersion) -> object:
    return version.model_dump(exclude={"version_id", "timestamp_ms"})
