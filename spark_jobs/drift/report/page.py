"""Renders a report as one HTML file that needs nothing else: no script, no other file, no network."""

from importlib.resources import files

from changelog.spark_jobs.drift.report import charts, sections
from changelog.spark_jobs.drift.report.markup import Markup, element, together
from changelog.spark_jobs.drift.report.sections import TONES, chip
from changelog.spark_jobs.drift.report.shape import EntityReport, FenceReport, Lost, Report
from changelog.spark_jobs.drift.report.spelling import count, moment, per_million, plural, seconds, transactions

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""The page's Content-Security-Policy. It allows the styles and the pictures that the page itself contains, and nothing
else.
"""

TITLES = {"clean": "No drift", "drift": "Drift", "severe": "Severe drift", "not caught up": "Not caught up"}
KINDS_OF_SOURCE = {"postgres": "PostgreSQL"}


def page(report: Report) -> str:
    """Returns the page of a report. Every text in it is escaped."""
    title = f"{_headline(report)} · {report.run.name}"
    style = files("changelog.spark_jobs.drift.report").joinpath("page.css").read_text("utf-8")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("link", rel="icon", href="data:,"),
        element("style", Markup(style)),
    )
    details = [
        sections.section(name, entity, report.keys)
        for name, entity in _ranked(report)
        if sections.needs_section(entity)
    ]
    main = element("main", _verdict(report), _compared(report), _table(report), *details, _footer(report))
    return "<!doctype html>\n" + element("html", head, element("body", main), lang="en") + "\n"


def _ranked(report: Report) -> list[tuple[str, EntityReport]]:
    """Returns the entities of the report, the worst first."""
    order = ("severe", "schema changed", "drift", "skipped", "clean")
    return sorted(
        report.entities.items(),
        key=lambda pair: (order.index(pair[1].verdict), -(pair[1].drifted or 0), pair[0]),
    )


def _headline(report: Report) -> str:
    """Returns the verdict in a few words. If the run is severe only because of a changed schema, this is "Schema
    changed".
    """
    entities = report.entities.values()
    if report.verdict == "severe" and not any(entity.drifted for entity in entities):
        return "Schema changed"
    return TITLES.get(report.verdict, "Refused")


def _verdict(report: Report) -> Markup:
    when = moment(report.run.started_at)
    return element(
        "header",
        element("p", "Drift report · ", element("bdi", report.run.name), " · ", when, class_="eyebrow"),
        element("h1", _headline(report), class_=f"verdict {TONES.get(report.verdict, 'flat')}"),
        element("p", _lede(report), class_="lede"),
        element("p", report.why, class_="note") if report.why else None,
    )


def _lede(report: Report) -> str:
    """Returns the reason for the verdict, in one or two sentences."""
    if report.verdict == "not caught up":
        return "The changelog did not catch up with the tables, so nothing was compared: lag is not drift."
    if report.verdict == "refused":
        return "Nothing was compared."
    compared_entities = [entity for entity in report.entities.values() if entity.drifted is not None]
    if not compared_entities:
        return "There was nothing to compare."
    rows = plural(sum(entity.source_rows or 0 for entity in compared_entities), "row")
    of = plural(len(compared_entities), "entity", "entities")
    altered = [name for name, entity in sorted(report.entities.items()) if entity.schema_changed]
    schemas = f" The schema of {', '.join(altered)} changed." if altered else ""
    if not any(entity.drifted for entity in compared_entities):
        return f"No key of {rows} drifted.{schemas}" if altered else f"{rows} of {of}: the changelog says the same."
    kinds = {
        kind: sum(getattr(entity, kind) or 0 for entity in compared_entities)
        for kind in ("missing", "extra", "changed")
    }
    summary = ", ".join(f"{count(number)} {kind}" for kind, number in kinds.items() if number)
    drifted = sum(bool(entity.drifted) for entity in compared_entities)
    return f"{plural(sum(kinds.values()), 'key')} of {rows} drifted, in {count(drifted)} of {of}: {summary}.{schemas}"


def _compared(report: Report) -> Markup:
    source, changelog = report.source, report.changelog
    kind = KINDS_OF_SOURCE.get(source.kind, source.kind)
    server = " ".join(word for word in (kind, source.server) if word)
    database = f", database {source.database}" if source.database else ""
    exact = (
        "Yes: both sides show the same transactions"
        if report.exact
        else "No: changes that are made meanwhile may look like drift"
    )
    is_compared = report.verdict in ("clean", "drift", "severe")
    facts = [
        _fact("Source of truth", f"{server}{database}"),
        _fact("Changelog", changelog.where),
        *(_fact("Changes were lost", *_lost(gap)) for gap in changelog.gaps),
        *((_fact("Exact", exact),) if is_compared else ()),
        *(_fence(report.fence) if report.fence else ()),
        _fact("Run", element("code", report.run.id), f", {seconds(report.run.seconds)}"),
    ]
    return element(
        "section",
        element("h2", "What was compared" if is_compared else "What was to be compared"),
        element("dl", *facts, class_="facts"),
        class_="compared",
    )


def _lost(gap: Lost) -> list[str]:
    before = element("code", gap.before) if gap.before else "an unknown position"
    between = together("between ", before, " and ", element("code", gap.position))
    return [gap.reason, element("br"), between, element("br"), moment(gap.at)]


def _fence(fence: FenceReport) -> list[Markup]:
    snapshot = f"{transactions(fence.snapshot)} " if fence.snapshot else None
    lsn = together("at ", element("code", fence.lsn)) if fence.lsn else None
    waited = None
    if fence.waited_seconds is not None:
        waited = together(", ", element("span", f"after {seconds(fence.waited_seconds)}"))
    reached = together(moment(fence.caught_up_at) if fence.caught_up_at else "not yet", waited)
    position = element("code", fence.position) if fence.position else None
    return [
        _fact("Fence", snapshot, lsn, element("br"), moment(fence.taken_at)),
        _fact("Changelog caught up", reached, element("br"), position),
    ]


def _fact(label: str, *parts: str | None) -> Markup:
    return element("div", element("dt", label), element("dd", *parts))


DRIFTED = ("missing", "extra", "changed", "per million")
SIDES = ("source rows", "changelog rows")
HEADINGS = ("entity", "verdict", *DRIFTED, "30 runs", *SIDES, "do")


def _table(report: Report) -> Markup | None:
    if not report.entities:
        return None
    heads = [
        element("th", name, scope="col", class_="number" if name in (*DRIFTED, *SIDES) else None) for name in HEADINGS
    ]
    rows = [_row(name, entity) for name, entity in _ranked(report)]
    table = element(
        "table",
        element("caption", "Rows on each side, and keys that drifted"),
        element("thead", element("tr", *heads)),
        element("tbody", *rows),
    )
    box = element("div", table, class_="scroll", role="region", aria_labelledby="entities", tabindex="0")
    return element("section", element("h2", "Entities", id="entities"), box)


def _row(name: str, entity: EntityReport) -> Markup:
    name_element = element("bdi", name)
    link = element("a", name_element, href=f"#entity-{name}") if sections.needs_section(entity) else name_element
    drifted = [*map(count, (entity.missing, entity.extra, entity.changed)), per_million(entity.ppm)]
    trend = charts.spark(entity.trend, name) if entity.trend else "–"
    return element(
        "tr",
        element("th", link, scope="row"),
        element("td", chip(entity.verdict)),
        *map(_number, drifted),
        element("td", trend),
        *map(_number, map(count, (entity.source_rows, entity.changelog_rows))),
        element("td", "–" if entity.action.do == "none" else entity.action.do),
    )


def _number(text: str) -> Markup:
    return element("td", text, class_="number zero" if text == "0" else "number")


def _footer(report: Report) -> Markup:
    keys = together(" · ", element("a", "all drifted keys", href=report.keys)) if report.keys else None
    data = element("a", "report.json", href="report.json")
    origin = f"Made by changelog-publisher {report.run.version} · "
    return element("footer", element("p", origin, data, keys))
