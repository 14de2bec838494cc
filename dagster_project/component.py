"""The component with which another Dagster project gets all of this: ``type: dagster_project.component.Lakehouses``.

Its ``defs.yaml`` names a ``lakehouses.yaml``, or holds the same stanzas itself.
"""

from pathlib import Path
from typing import Any

import dagster as dg
import yaml

from dagster_project.config import parse
from dagster_project.factory import define_lakehouses, of_file


class Lakehouses(dg.Component, dg.Model, dg.Resolvable):
    """Maintenance of TrinityLake lakehouses: their assets, checks, jobs, schedules and sensors.

    Attributes:
        file: a ``lakehouses.yaml``, relative to the folder of this component.
        lakehouses: or the stanzas, as that file has them.
        notifications: where failures are sent, as that file has it; only with ``lakehouses``.
    """

    file: str | None = None
    lakehouses: list[dict[str, Any]] | None = None
    notifications: dict[str, Any] | None = None

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions. Touches no storage. The project's own executor stays."""
        if (self.file is None) == (self.lakehouses is None):
            raise dg.DagsterInvalidDefinitionError("attributes: give either `file` or `lakehouses`")
        path = context.path.parent if context.path.is_file() else context.path
        if self.file is not None:
            return of_file(path / Path(self.file).expanduser(), shares=True)
        text = yaml.safe_dump({"lakehouses": self.lakehouses, "notifications": self.notifications or {}})
        settings = parse(text, path / "defs.yaml")
        return define_lakehouses(settings.lakehouses, settings.notifications, shares=True)
