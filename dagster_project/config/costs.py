"""The stanza ``compaction.costs``: what waiting and compacting cost."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from dagster_project.config.values import Model
from pipelines.worth import Prices

_S3: Final = Prices()


class Costs(Model):
    """What waiting and compacting cost, in US dollars; requests and storage as published for S3 Standard, us-east-1.

    With ``enabled`` the sensor requests a compaction once waiting has cost as much. ``hour`` is one of somebody who
    waits, ``opens_per_commit`` how often the lakehouse is opened for each commit, and ``megabytes_per_second`` how fast
    a connection is: assumptions.
    """

    enabled: bool = True
    put_per_1000: float = Field(default=_S3.put_per_1000, ge=0)
    get_per_1000: float = Field(default=_S3.get_per_1000, ge=0)
    storage_gb_month: float = Field(default=_S3.storage_gb_month, ge=0)
    hour: float = Field(default=_S3.hour, ge=0)
    opens_per_commit: float = Field(default=_S3.opens_per_commit, ge=0)
    megabytes_per_second: float = Field(default=_S3.megabytes_per_second, gt=0)

    @property
    def prices(self) -> Prices:
        """The prices."""
        return Prices(**self.model_dump(exclude={"enabled"}))
