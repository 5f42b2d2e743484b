"""Draws the two kinds of charts on a page: how many keys drifted in each run, and in which columns they differ."""

from collections.abc import Mapping, Sequence

from changelog.spark_jobs.drift.report.markup import Markup, element, together
from changelog.spark_jobs.drift.report.shape import Point
from changelog.spark_jobs.drift.report.spelling import count, day, plural

HEIGHT = 32
STEP, WIDTH = 8, 6
"""The distance between the left edges of two bars, and the width of a bar. All lengths here are in pixels."""

BARE = 2
"""The height of the tick that marks a run without drift."""

COLUMNS_MAX = 12
"""The most columns that `columns` shows."""


def spark(points: Sequence[Point], name: str) -> Markup:
    """Draws a bar for each run, the newest on the right. `name` is the entity. The title says the same in words."""
    values = [point.missing + point.extra + point.changed for point in points]
    value_max = max(values, default=0)
    bars = [_bar(index, value, value_max) for index, value in enumerate(values)]
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


def _bar(index: int, value: int, value_max: int) -> Markup:
    height = BARE if not value else max(round(value / value_max * HEIGHT, 1), 2 * BARE)
    kind = "bar" if value else "bar none"
    box = {"x": str(index * STEP), "y": str(HEIGHT - height), "width": str(WIDTH), "height": str(height)}
    return element("rect", class_=kind, rx="1", **box)


def _spoken(points: Sequence[Point], values: Sequence[int], name: str) -> str:
    if not values:
        return f"{name}: no run yet"
    span = f"{plural(len(values), 'run')}, {day(points[0].at)} to {day(points[-1].at)}"
    return f"Drifted keys of {name}, {span}: {count(values[-1])} in the last run, {count(max(values))} at most"


def columns(counts: Mapping[str, int], drifted: int) -> Markup:
    """Draws a bar for each column. The column that differs most often comes first. The length of the bar says for which
    share of the drifted keys the column differs.
    """
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    rows = [_column(name, keys, drifted) for name, keys in ranked[:COLUMNS_MAX]]
    others = len(ranked) - COLUMNS_MAX
    more = element("p", f"and {plural(others, 'more column')}", class_="quiet") if others > 0 else None
    return together(element("ul", *rows, class_="bars"), more)


def _column(name: str, keys: int, drifted: int) -> Markup:
    share = min(keys / max(drifted, 1), 1.0)
    track = element("span", element("span", style=f"width:{share:.2%}"), class_="track", aria_hidden="true")
    number = element("span", f"{count(keys)}", class_="number")
    return element("li", element("code", element("bdi", name)), track, number)
