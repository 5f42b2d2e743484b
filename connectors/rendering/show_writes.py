"""Renders what a service or a request wrote."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from changelog.connectors.history.writes import FIRST_MAX, EntityWrites
from changelog.connectors.show import counted, moment
from changelog.connectors.terminal import safe


def writes(writer: str, entities: Sequence[EntityWrites], *, with_services: bool) -> Iterator[RenderableType]:
    """Yields a title and one paragraph for each entity. `writer` says whose writes they are.

    If `with_services`, each paragraph lists the services. This is not needed if the title names the only one.
    """
    changes = sum(entity.changes for entity in entities)
    title = Text(safe(writer), style="bold")
    title.append(f" made {counted(changes, 'change')}", style="not bold")
    yield title.append(f" to {len(entities)} entities" if len(entities) > 1 else "", style="not bold")
    for entity in entities:
        yield ""
        yield Text(entity.entity, style="bold").append(f"  {_kinds(entity)}", style="not bold")
        for line in _details(entity, with_services=with_services):
            yield Padding(line, (0, 0, 0, 4))


def _kinds(entity: EntityWrites) -> str:
    kinds = {
        "created": entity.creates,
        "changed": entity.updates,
        "moved": entity.moves,
        "deleted": entity.deletes,
        "truncated": entity.truncates,
    }
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)


def _details(entity: EntityWrites, *, with_services: bool) -> Iterator[Text]:
    if entity.keys:
        yield _list("keys ", entity.keys)
    if with_services:
        yield _list("by ", entity.services)
    yield Text(f"first {moment(entity.first_time)}  {entity.first_position}", style="dim")
    if entity.last_position != entity.first_position:
        yield Text(f"last  {moment(entity.last_time)}  {entity.last_position}", style="dim")


def _list(label: str, names: Sequence[str]) -> Text:
    """Returns `label` and `names`. If there may be more than these names, the list ends with an ellipsis."""
    more = ", …" if len(names) == FIRST_MAX else ""
    return Text(label, style="dim").append(", ".join(map(safe, names)) + more, style="not dim")
