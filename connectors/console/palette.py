"""Gives each service a colour, the same one on every page if possible."""

import zlib
from collections.abc import Callable, Iterable, Mapping

from changelog.envelope.model import Stamp
from changelog.envelope.stamp import StampKind, kind_of

COLOURS = 8
"""The number of colours for services; `static/console.css` has them as the classes `c0` to `c7`."""

SERVICES_MAX = 256
"""A palette remembers the colours of at most this many services. The colour of any other service depends only on its
name.
"""

NOBODY = "nobody"
"""The CSS class of a change that has no stamp."""


class Palette:
    """Chooses the colour of each service. A colour is given as the name of its CSS class. `default_of` returns the
    default stamp of an entity.

    A service gets a colour when a page first shows the service, and then keeps this colour. It gets the colour that the
    fewest services have. If there are several such colours, the service's name chooses one: the name gives a number,
    and the service gets the first of these colours at or after this number. After the highest number comes 0.
    """

    def __init__(self, default_of: Callable[[str], Stamp]) -> None:
        self._default_of = default_of
        self._numbers: dict[str, int] = {}

    def kind(self, entity: str, stamp: Stamp) -> StampKind:
        """Returns who stamped a change of `entity` with `stamp`."""
        return kind_of(stamp, self._default_of(entity))

    def colour(self, entity: str, stamp: Stamp) -> str:
        """Returns the CSS class of a change of `entity` with `stamp`."""
        return self.colour_of(stamp.service_name, self.kind(entity, stamp))

    def colour_of(self, service: str, kind: StampKind) -> str:
        """Returns the CSS class of a service whose stamps are of this kind."""
        return NOBODY if kind is StampKind.NONE else f"c{self._number(service)}"

    def distinct(self, entity: str, stamps: Iterable[Stamp]) -> Mapping[str, str]:
        """Returns the CSS class of each service in these stamps, in the order of the stamps.

        Up to `COLOURS` services get different colours, even if the palette has given some of them the same colour.
        """
        classes: dict[str, str] = {}
        for stamp in stamps:
            if stamp.service_name not in classes:
                colour = self.colour(entity, stamp)
                free = [f"c{number}" for number in range(COLOURS) if f"c{number}" not in classes.values()]
                is_taken = colour != NOBODY and colour not in free
                classes[stamp.service_name] = free[0] if is_taken and free else colour
        return classes

    def _number(self, service: str) -> int:
        first = zlib.crc32(service.encode()) % COLOURS
        number = self._numbers.get(service)
        if number is None and len(self._numbers) < SERVICES_MAX:
            numbers = list(self._numbers.values())
            number = min(
                range(COLOURS), key=lambda candidate: (numbers.count(candidate), (candidate - first) % COLOURS)
            )
            self._numbers[service] = number
        return first if number is None else number
