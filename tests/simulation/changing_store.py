"""A store that changes its behaviour while a lakehouse is in use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.simulation import store as stores
from tests.simulation.common import Action, Kind
from tests.simulation.world import World


def _switch_versioning_on(world: World) -> Action:
    """Switch the versioning of the bucket on, in a store that creates nothing exclusively from then on."""

    def switch() -> None:
        world.store.exclusive = False
        world.store.changed.append("the versioning of the bucket")

    def act() -> str:
        stores.scheduled("put", "the versioning of the bucket", switch)
        return "switched on"

    return act


CHANGING_STORES: Final[Mapping[str, Kind]] = {"versioning": Kind(_switch_versioning_on)}
"""What happens to a store."""
