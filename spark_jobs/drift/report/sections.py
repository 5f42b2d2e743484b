"""Renders the section of one entity on the report's page: what to do, how much drifted, where the drift is, samples of
drifted keys, and what became of earlier drift.
"""

from collections.abc import Mapping
from typing import Any

from changelog.spark_jobs.drift.report import charts
from changelog.spark_jobs.drift.report.markup import Markup, element, together
from changelog.spark_jobs.drift.report.shape import EntityReport, Incidents, Sample
from changelog.spark_jobs.drift.report.spelling import count, day, key, moment, per_million, plural, sides

LABELS = {
    "clean": "no drift",
    "drift": "drift",
    "severe": "severe drift",
    "schema changed": "schema changed",
    "skipped": "not compared",
    "not caught up": "not caught up",
    "refused": "not compared",
}
"""The words that the page shows for verdicts."""

TONES = {"clean": "good", "drift": "warn", "severe": "bad", "schema changed": "warn"}
"""The colours of verdicts, as CSS classes. A verdict that is not listed is grey (`flat`)."""

DOES = {
    "republish": "Publish the drifted keys again",
    "rebuild": "Rebuild the entity",
    "stop": "Stop: a person decides",
}

UNKNOWN = "unknown"
"""The service name that the default stamp has, unless the configuration sets another one."""

CONTEXT_CHARACTERS_MAX = 200
"""At most this many characters of a stamp's context are shown. `report.json` has the whole text."""

KINDS = {
    "missing": "in the source, not in the changelog",
    "extra": "in the changelog, not in the source",
    "changed": "in both, and not equal",
}


def needs_section(entity: EntityReport) -> bool:
    """Returns whether the entity needs a section, in addition to its row in the table."""
    keys = entity.history.open + entity.history.republished + entity.history.verified
    notes = entity.why or entity.unknown or entity.sampled
    return entity.verdict not in ("clean", "skipped") or keys > 0 or bool(notes)


def chip(verdict: str) -> Markup:
    """Returns a verdict in words and colour."""
    return element("span", LABELS[verdict], class_=f"chip {TONES.get(verdict, 'flat')}")


def section(name: str, entity: EntityReport, keys: str | None) -> Markup:
    """Returns the section of one entity. `keys` is the name of the file with all drifted keys, which is beside the
    page.
    """
    title = element("h2", element("bdi", name), " ", chip(entity.verdict), id=f"entity-{name}")
    key_columns = together("key ", element("code", element("bdi", ", ".join(entity.key))))
    about = element("p", element("code", element("bdi", entity.table)), " · ", key_columns, class_="quiet")
    notes = [element("p", note, class_="note") for note in (entity.why, _sampled(entity)) if note]
    parts = [title, about, *notes, _action(entity)]
    if entity.drifted is not None:
        parts += [_figures(entity), _trend(name, entity), _where(entity), _schema(entity), _unknown(entity)]
        parts += [_samples(entity, keys)]
    parts.append(_history(entity))
    return element("section", *parts, class_="entity", aria_labelledby=f"entity-{name}")


def _sampled(entity: EntityReport) -> str | None:
    return f"Only a part was compared: {entity.sampled}." if entity.sampled else None


def _action(entity: EntityReport) -> Markup | None:
    action = entity.action
    if action.do == "none":
        return None
    reason = element("p", element("strong", DOES[action.do]), f" · {action.why}")
    line = element("pre", element("code", action.command), tabindex="0") if action.command else None
    sending = _sent(entity)
    return element("div", reason, line, sending, class_=f"action {TONES.get(entity.verdict, 'flat')}")


def _sent(entity: EntityReport) -> Markup | None:
    if entity.repaired is None:
        return None
    number = plural(len(entity.repaired.signals), "signal")
    return element("p", f"Sent by this run, {number}, ", moment(entity.repaired.at), ".", class_="quiet")


def _figures(entity: EntityReport) -> Markup:
    figures = {
        "source rows": count(entity.source_rows),
        "changelog rows": count(entity.changelog_rows),
        "missing": count(entity.missing),
        "extra": count(entity.extra),
        "changed": count(entity.changed),
        "per million": per_million(entity.ppm),
    }
    return element("dl", *(_figure(label, figure) for label, figure in figures.items()), class_="figures")


def _figure(label: str, figure: str) -> Markup:
    return element("div", element("dt", label), element("dd", figure, class_="zero" if figure == "0" else None))


def _trend(name: str, entity: EntityReport) -> Markup:
    points = entity.trend
    most = max((point.missing + point.extra + point.changed for point in points), default=0)
    peak = f"{count(most)} at most" if most else "none drifted"
    span = f", {day(points[0].at)} to {day(points[-1].at)}" if len(points) > 1 else ""
    caption = element("p", f"{plural(len(points), 'run')}{span}: {peak}", class_="quiet")
    return element("div", element("h3", "Drifted keys over runs"), charts.spark(points, name), caption, class_="trend")


def _where(entity: EntityReport) -> Markup | None:
    """Shows where the drift is: its columns, its writers, and whether it is one incident or many."""
    if not entity.drifted:
        return None
    blocks = []
    if entity.columns:
        title = element("h3", "Columns that differ")
        blocks.append(element("div", title, charts.columns(entity.columns, entity.drifted)))
    if entity.writers:
        writers = [
            _writer(writer.service_name, writer.api_version, writer.drifted, entity.drifted)
            for writer in entity.writers
        ]
        blocks.append(element("div", element("h3", "Who wrote them last"), element("ul", *writers, class_="bars")))
    if entity.incidents is not None:
        blocks.append(element("div", element("h3", "When they were written last"), *_incidents(entity.incidents)))
    return element("div", *blocks, class_="where") if blocks else None


def _writer(service: str | None, version: str | None, drifted: int, of: int) -> Markup:
    who = READ if service is None else _who(service, version)
    track = element(
        "span", element("span", style=f"width:{min(drifted / of, 1):.2%}"), class_="track", aria_hidden="true"
    )
    return element("li", element("bdi", who), track, element("span", count(drifted), class_="number"))


READ = "read from the table; who wrote them is not known"
"""Takes the place of a writer if the last message of a row is a `read`, because the row's writer is then not known."""


def _who(*names: str | None) -> str:
    """Returns the known names of a stamp; *unknown* if the stamp has none."""
    return " ".join(name for name in names if name and name != UNKNOWN) or UNKNOWN


def _incidents(incidents: Incidents) -> list[Markup]:
    is_one = incidents.shape == "one"
    summary = (
        "One incident: these changes are close together."
        if is_one
        else f"{plural(incidents.count, 'incident')}, scattered."
    )
    rows = [
        ("first", incidents.first_at, incidents.first_position),
        ("last", incidents.last_at, incidents.last_position),
    ]
    places = [
        element("div", element("dt", label), element("dd", moment(at), element("br"), element("code", position or "–")))
        for label, at, position in rows
        if at or position
    ]
    return [element("p", summary), element("dl", *places, class_="places")]


def _schema(entity: EntityReport) -> Markup | None:
    return _listed("Columns whose schema changed", entity.schema_changed)


def _unknown(entity: EntityReport) -> Markup | None:
    texts = {column: f"not known to the changelog in {plural(rows, 'row')}" for column, rows in entity.unknown.items()}
    return _listed("Not compared", texts)


def _listed(title: str, texts: Mapping[str, str]) -> Markup | None:
    if not texts:
        return None
    rows = [
        element("div", element("dt", element("code", element("bdi", name))), element("dd", text))
        for name, text in texts.items()
    ]
    return element("div", element("h3", title), element("dl", *rows, class_="places"))


def _samples(entity: EntityReport, keys: str | None) -> Markup | None:
    if not entity.samples:
        return None
    samples, drifted = len(entity.samples), entity.drifted or 0
    of = f"{samples} of {count(entity.drifted)} drifted keys" if samples < drifted else "All drifted keys"
    where = together(of, "; every one is in ", element("a", keys, href=keys)) if keys else together(of)
    cards = [_sample(sample) for sample in entity.samples]
    return element("div", element("h3", "Keys"), element("p", where, class_="quiet"), *cards, class_="samples")


def _sample(sample: Sample) -> Markup:
    head = element("h4", key(sample.key), " ", element("span", f"{sample.kind}: {KINDS[sample.kind]}", class_="kind"))
    columns = [
        _column(name, *sides(pair.get("source"), pair.get("changelog"))) for name, pair in sample.columns.items()
    ]
    titles = [element("th", title, scope="col") for title in ("column", "source", "changelog")]
    table = element("table", element("thead", element("tr", *titles)), element("tbody", *columns))
    return element("article", head, table if columns else None, _provenance(sample.provenance), class_="sample")


def _column(name: str, source: Markup, changelog: Markup) -> Markup:
    return element(
        "tr",
        element("th", element("code", element("bdi", name)), scope="row"),
        element("td", source),
        element("td", changelog),
    )


def _provenance(provenance: Mapping[str, Any] | None) -> Markup:
    """Describes the last change of the key in the changelog."""
    if provenance is None:
        return element("p", "No change of this key is known.", class_="quiet")
    source = provenance.get("source") or {}
    who = _who(*(provenance.get(name) for name in ("serviceName", "apiVersion", "identifier")))
    where = element("code", str(source.get("position") or "–"))
    at = moment(source.get("committedAt"))
    did = f"Last {source.get('op') or 'change'} by "
    context = _context(provenance.get("context"))
    return element("p", did, element("bdi", who), ", ", at, ", at ", where, *context, class_="quiet")


def _context(text: str | None) -> list[Markup | str]:
    """Shows the stamp's context as the application wrote it, but at most `CONTEXT_CHARACTERS_MAX` characters of it."""
    if not text:
        return []
    short_text = text if len(text) <= CONTEXT_CHARACTERS_MAX else text[: CONTEXT_CHARACTERS_MAX - 1] + "…"
    return [": ", element("code", element("bdi", short_text))]


def _history(entity: EntityReport) -> Markup | None:
    history = entity.history
    if not (history.open or history.republished or history.verified):
        return None
    steps = [
        _step("open", history.open, "drift, no repair sent yet"),
        _step("republished", history.republished, "sent again, not compared since"),
        _step("verified", history.verified, "drifted in an earlier run, equal again"),
    ]
    first_seen = (
        element("p", "First seen ", moment(history.first_seen), ".", class_="quiet") if history.first_seen else None
    )
    return element("div", element("h3", "What became of it"), element("ol", *steps, class_="steps"), first_seen)


def _step(name: str, keys: int, explanation: str) -> Markup:
    number = element("span", count(keys), class_="number")
    label = element("span", element("strong", name), element("br"), element("span", explanation, class_="quiet"))
    return element("li", number, label, class_=None if keys else "idle")
