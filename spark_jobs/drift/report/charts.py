"""The two drawings of a page: drifted keys over runs, and what share of them each column has."""

from collections.abc import Mapping, Sequence

from changelog.spark_jobs.drift.report.markup import Markup, element, together
from changelog.spark_jobs.drift.report.shape import Point
from changelog.spark_jobs.drift.report.spelling import count, day, plural

HEIGHT = 32
STEP, WIDTH = 8, 6
BARE = 2
"""What a run without drift is drawn as, in the same units: a tick, and not nothing."""

COLUMNS_MAX = 12


def spark(points: Sequence[Point], name: str) -> Markup:
    """A bar a run, the newest on the right; its title says in words what it shows."""
    values = [point.missing + point.extra + point.changed for point in points]
    most = max(values, default=0)
    bars = [_bar(index, value, most) for index, value in enumerate(values)]
    width = max(len(values) * STEP - (STEP - WIDTH), WIDTH)
    title = element("title", _spoken(points, values, name))
    return element(
        "svg",
        title,
        *bars,
        class_="spark",
        role="img",
        viewBox=f"0 0 {width} {HEIGHT}",
        width=width,
        height=HEIGHT,
    )


def _bar(index: int, value: int, most: int) -> Markup:
    height = BARE if not value else max(round(value / most * HEIGHT, 1), 2 * BARE)
    kind = "bar" if value else "bar none"
    place = {"x": str(index * STEP), "y": str(HEIGHT - height), "width": str(WIDTH), "height": str(height)}
    return element("rect", class_=kind, rx="1", **place)


def _spoken(points: Sequence[Point], values: Sequence[int], name: str) -> str:
    if not values:
        return f"{name}: no run yet"
    span = f"{plural(len(values), 'run')}, {day(points[0].at)} to {day(points[-1].at)}"
    return f"Drifted keys of {name}, {span}: {count(values[-1])} in the last run, {count(max(values))} at most"


def columns(counts: Mapping[str, int], drifted: int) -> Markup:
    """A bar a column, the most drifted first: in how many of the drifted keys it differs."""
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    rows = [_column(name, keys, drifted) for name, keys in ranked[:COLUMNS_MAX]]
    left = len(ranked) - COLUMNS_MAX
    more = element("p", f"and {plural(left, 'more column')}", class_="quiet") if left > 0 else None
    return together(element("ul", *rows, class_="bars"), more)


def _column(name: str, keys: int, drifted: int) -> Markup:
    share = min(keys / max(drifted, 1), 1.0)
    track = element("span", element("span", style=f"width:{share:.2%}"), class_="track", aria_hidden="true")
    number = element("span", f"{count(keys)}", class_="number")
    return element("li", element("code", element("bdi", name)), track, number)
