"""Guards settings that must not change silently, because the order or the content of the changelog depends on them."""

from collections.abc import Mapping, Sequence

from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.mask import mask_id

PLAIN_CODEC = "json"
"""The codec if the stored settings of a changelog do not name one."""


def shapes_of(entities: Sequence[Entity], *, codec: str, hmac_key: bytes) -> dict[str, dict[str, object]]:
    """Returns, for each entity, the settings on which the order and the content of its changelog depend.

    The settings do not contain the secret of the masks, but an id that is derived from the secret and the masks.
    """
    codec_setting = {} if codec == PLAIN_CODEC else {"codec": codec}
    return {
        entity.name: {**entity.shape(), "mask_id": mask_id(entity.masks, hmac_key), **codec_setting}
        for entity in entities
    }


def check_settings(checkpoint: Checkpoint | None, shapes: Mapping[str, Mapping[str, object]], *, accept: bool) -> None:
    """Raises ChangelogError (SETTINGS) if `shapes` differs from the settings that the changelog was written with.

    New entities are allowed. With `accept`, other differences are allowed, too, unless the changelog ends inside a
    transaction.
    """
    if checkpoint is None:
        return
    changes = [
        f"entity {name} was removed"
        if name not in shapes
        else f"entity {name} has other settings: {_differences(stored_shape, shapes[name])}"
        for name, stored_shape in checkpoint.settings.items()
        if shapes.get(name) != stored_shape
    ]
    if not changes:
        return
    if checkpoint.partial:
        raise ChangelogError(
            Kind.SETTINGS,
            f"{'; '.join(changes)}, while a transaction is half published",
            hint="restore the earlier configuration, let the service publish the rest of that transaction, then change "
            "the configuration",
        )
    if not accept:
        repartitioned = any(
            shapes.get(name) and _partitioning(stored_shape) != _partitioning(shapes[name])
            for name, stored_shape in checkpoint.settings.items()
        )
        note = (
            ", and the rows of one key may be in two partitions, so only their positions tell their order"
            if repartitioned
            else ""
        )
        raise ChangelogError(
            Kind.SETTINGS,
            f"the configuration no longer fits the changelog: {'; '.join(changes)}",
            hint="restore the earlier configuration, or go on with `changelog run --accept-config`: older rows keep "
            f"their old shape{note}",
        )


def _partitioning(shape: Mapping[str, object]) -> tuple[object, object]:
    """Returns the settings that decide in which partition a row is."""
    return shape.get("partition_by"), shape.get("partitions")


def _differences(old: Mapping[str, object], new: Mapping[str, object]) -> str:
    return ", ".join(name for name in dict.fromkeys([*new, *old]) if old.get(name) != new.get(name))
