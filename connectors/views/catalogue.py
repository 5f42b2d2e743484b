"""Decides which views are served: those of the configuration, or, if it has none, all entities of the changelog."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from changelog.connectors.config.views import OWN_ADDRESSES, ViewConfig
from changelog.connectors.views.condition.parse import parse
from changelog.connectors.views.served import StateEngine
from changelog.connectors.views.shown import ShownView
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.service_choice import ALL_SERVICES

ALL = ("*",)
"""The value of `columns` that means all columns."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The views that an engine serves: the `declared` ones. If there are none, each entity is a view of its own."""

    engine: StateEngine
    declared: Mapping[str, ShownView] = field(default_factory=dict)

    def views(self) -> Mapping[str, ShownView]:
        """Returns the views that can be queried now, by name."""
        entities = self.engine.entities()
        return {name: self._shown(name, entities) for name in self.declared or entities}

    def view(self, name: str) -> ShownView | None:
        """Returns the view with this name; None if there is none."""
        entities = self.engine.entities()
        return self._shown(name, entities) if name in (self.declared or entities) else None

    def _shown(self, name: str, entities: Mapping[str, Sequence[str]]) -> ShownView:
        if self.declared:
            view = self.declared[name]
            return replace(view, key=tuple(entities.get(view.entity, ())))
        return ShownView(name=name, entity=name, served=self.engine.view(name), key=tuple(entities[name]))


def catalogue(engine: StateEngine, views: Mapping[str, ViewConfig]) -> Catalogue:
    """Returns the catalogue of a configuration's views.

    Raises ChangelogError (USAGE) if a view has a condition that served views do not support, if a view does not fit its
    entity, or if no view is declared and an entity cannot be served under its own name. If the changelog has no
    entities yet, this function does not check whether the views fit their entities.
    """
    declared = {name: _declared(engine, name, view) for name, view in views.items() if view.serve is not None}
    entities = engine.entities()
    for name, view in declared.items() if entities else ():
        if view.entity not in entities:
            message = f"views.{name}: {engine.where} has no entity {view.entity}"
            raise ChangelogError(Kind.USAGE, message, hint=f"it has: {', '.join(entities)}")
        with _naming(name):
            view.check()
    clashes = sorted(OWN_ADDRESSES & entities.keys())
    if not declared and clashes:
        raise ChangelogError(
            Kind.USAGE,
            f"the entity {clashes[0]} cannot be served under its own name, because /{clashes[0]} has another meaning",
            hint="declare the views: [views.X] with `entity` and `serve = {}`",
        )
    return Catalogue(engine, declared)


def _declared(engine: StateEngine, name: str, view: ViewConfig) -> ShownView:
    with _naming(name):
        condition = None if view.where is None else parse(view.where)
    services = ALL_SERVICES if view.serve is None else view.serve.services
    return ShownView(
        name=name,
        entity=view.entity,
        served=engine.view(view.entity, services),
        columns=None if view.columns == ALL else view.columns,
        condition=condition,
        max_lag_s=None if view.serve is None else view.serve.max_lag_seconds,
        services=services,
    )


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Adds the name of a view to the errors of the block."""
    try:
        yield
    except ChangelogError as error:
        raise ChangelogError(error.kind, f"views.{name}: {error.message}", hint=error.hint) from error
