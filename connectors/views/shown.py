"""Applies the `columns` and the `where` of a view to the rows of its entity."""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import msgspec

from changelog.connectors.views.condition.judge import Judge, judge
from changelog.connectors.views.condition.parse import Condition
from changelog.connectors.views.served import Completeness, ServedView, StateRow, ViewMoment
from changelog.envelope.codec.json_codec import members
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.service_choice import ALL_SERVICES, ServiceChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownView:
    """The view `name`. It shows the rows of an entity for which `condition` holds, with these `columns` (None for all).

    `key` are the columns of the entity's key, if they are known. `max_lag_s` is the largest staleness, in seconds, that
    a request accepts if it has no parameter `max_lag`. `services` chooses the services whose changes count in the rows
    of `served`.
    """

    name: str
    entity: str
    served: ServedView
    key: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    condition: Condition | None = None
    max_lag_s: float | None = None
    services: ServiceChoice = ALL_SERVICES

    @property
    def definition(self) -> int:
        """Returns a number that changes whenever the view's entity, columns, condition or services change."""
        return zlib.crc32(repr((self.entity, self.columns, self.condition, self.services)).encode())

    def check(self) -> None:
        """Raises ChangelogError (USAGE) if the view does not fit the entity's columns, unless these are unknown."""
        columns = self.served.columns()
        if columns is None:
            return
        names = [name for name, _ in columns.fields]
        unknown_name = next((name for name in self.columns or () if name not in names), None)
        if unknown_name is not None:
            message = f"the entity {self.entity} has no column {unknown_name}"
            raise ChangelogError(Kind.USAGE, message, hint=f"it has: {', '.join(names)}")
        if self.condition is not None:
            judge(self.condition, columns)

    def now(self, key: str | None = None, *, allows_stale: bool = False) -> "ShownMoment":
        """Returns the rows that the view shows now. With a `key`, the caller reads only the row of this key. With
        `allows_stale`, rows may come from an older copy.

        Raises the errors of `ServedView.now`. Also raises ChangelogError (PRECONDITION) if the view has a condition,
        and the changelog does not have the types of the columns.
        """
        return ShownMoment(view=self, moment=self.served.now(key, allows_stale=allows_stale), judge=self._judge())

    def at_hand(self, key: str) -> "ShownMoment | None":
        """Returns the rows that the view shows now, of which the caller reads only the row of `key`. Returns None if
        this process does not have this row, or may have only an older state of it (`ServedView.at_hand`).
        """
        moment = self.served.at_hand(key)
        return None if moment is None else ShownMoment(view=self, moment=moment, judge=self._judge())

    def _judge(self) -> Judge | None:
        if self.condition is None:
            return None
        columns = self.served.columns()
        if columns is None:
            raise ChangelogError(
                Kind.PRECONDITION,
                f"the changelog lacks the columns of the entity {self.entity}, which the view's condition needs",
                hint="leave `where` out, and filter in the client",
            )
        return _judged(self.condition, columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownMoment:
    """The rows that a view shows at one moment. Its methods raise the errors of `moment`, and also ChangelogError
    (MALFORMED) if the state of a row is not a JSON object.
    """

    view: ShownView
    moment: ViewMoment
    judge: Judge | None

    @property
    def reached(self) -> Completeness:
        """How far the rows are complete."""
        return self.moment.reached

    def get(self, key: str) -> StateRow | None:
        """Returns the row of a key; None if there is none, or if the view does not show it."""
        return self._show(self.moment.get(key))

    def rows(self, begin: str) -> Iterator[tuple[str, StateRow | None]]:
        """Yields the keys from `begin` on, in order, each with its row. The row is None if the key has none, or if the
        view does not show it.
        """
        for key, row in self.moment.rows(begin):
            yield key, self._show(row)

    def _show(self, row: StateRow | None) -> StateRow | None:
        if row is None:
            return None
        try:
            values = members(row.current)
        except ValueError:
            message = f"the state of a row of the entity {self.view.entity} is not a JSON object"
            raise ChangelogError(Kind.MALFORMED, message, position=row.position) from None
        if self.judge is not None and self.judge(values) is not True:
            return None
        return row if self.view.columns is None else _with_columns(row, values, self.view.columns)


_judged = lru_cache(maxsize=64)(judge)


def _with_columns(row: StateRow, values: Mapping[str, bytes], columns: tuple[str, ...]) -> StateRow:
    parts = [b"%b:%b" % (msgspec.json.encode(name), values[name]) for name in columns if name in values]
    unavailable = tuple(name for name in row.unavailable if name in columns)
    return replace(row, current=b"{%b}" % b",".join(parts), unavailable=unavailable)
