"""Makes the OpenAPI 3.1 document that describes the HTTP API."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from changelog.connectors.extras import own_version
from changelog.connectors.views.http.questions import LIMIT, LIMIT_MAX
from changelog.connectors.views.shown import ShownView

Document = Mapping[str, Any]

_TEXT: Final[Document] = {"type": "string"}
_FRESHNESS: Final = [
    {
        "name": "min_position",
        "in": "query",
        "schema": _TEXT,
        "description": "Wait until states have every change up to this position, or up to this LSN of PostgreSQL.",
    },
    {
        "name": "max_lag",
        "in": "query",
        "schema": {"type": "string", "examples": ["2s", "500ms"]},
        "description": "Wait until the last write of the changelog is at most this long ago.",
    },
    {
        "name": "stale",
        "in": "query",
        "schema": {"type": "string", "enum": ["allowed"]},
        "description": "A standby may answer if the instance with the rows does not. Its rows may be older.",
    },
]
_RANGE: Final = [
    {
        "name": name,
        "in": "query",
        "schema": {"type": "array", "items": _TEXT},
        "explode": True,
        "description": description,
    }
    for name, description in (
        ("prefix", "Only keys with this prefix. For a key of several columns, give it once for each leading column."),
        ("from", "Only keys from this one on."),
        ("to", "Only keys before this one."),
    )
] + [
    {"name": "after", "in": "query", "schema": _TEXT, "description": "Only keys after this canonical text."},
    {
        "name": "limit",
        "in": "query",
        "schema": {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT},
        "description": "How many rows a page has at most.",
    },
]
_HEADERS: Final[Document] = {
    "X-Position": {"schema": _TEXT, "description": "States have every change up to this position."},
    "X-Staleness": {"schema": {"type": "number"}, "description": "Seconds since the changelog was last written."},
}
_SCHEMAS: Final[Document] = {
    "Row": {
        "type": "object",
        "required": ["key", "position", "committedAt", "current", "unavailable"],
        "properties": {
            "key": {**_TEXT, "description": "The canonical text of the key."},
            "position": {**_TEXT, "description": "The position of the row's last change."},
            "committedAt": {**_TEXT, "format": "date-time"},
            "current": {"type": "object", "description": "The row, as the changelog has it."},
            "unavailable": {"type": "array", "items": _TEXT, "description": "Columns whose values are unknown."},
        },
    },
    "Rows": {
        "type": "object",
        "required": ["rows", "next"],
        "properties": {
            "rows": {"type": "array", "items": {"$ref": "#/components/schemas/Row"}},
            "next": {"type": ["string", "null"], "description": "The address of the next page."},
        },
    },
    "Error": {
        "type": "object",
        "required": ["status", "error", "hint"],
        "properties": {"status": {"type": "integer"}, "error": _TEXT, "hint": {"type": ["string", "null"]}},
    },
}


def openapi(views: Iterable[ShownView], *, needs_token: bool) -> Document:
    """Returns the OpenAPI document of these views."""
    paths = {address: item for view in views for address, item in _paths(view)}
    components: dict[str, Any] = {"schemas": _SCHEMAS}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "The present state of each row",
            "version": own_version(),
            "description": "Rows of a database's tables, as its changelog has them.",
        },
        "paths": paths,
        "components": components,
    }
    if needs_token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def _paths(view: ShownView) -> list[tuple[str, Document]]:
    columns = view.key or ("key",)
    values = [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in columns]
    address = "/".join([f"/{view.name}", *(f"{{{name}}}" for name in columns)])
    rows = _operation(f"The rows of {view.name}, in the order of their keys.", "Rows", [*_RANGE, *_FRESHNESS])
    row = _operation(f"The row of {view.name} with this key.", "Row", [*values, *_FRESHNESS], ("304", "404", "504"))
    return [(f"/{view.name}", {"get": rows}), (address, {"get": row})]


def _operation(summary: str, schema: str, parameters: list[dict[str, Any]], also: tuple[str, ...] = ()) -> Document:
    texts = {
        "304": "The client has this state already (If-None-Match).",
        "400": "The request cannot be read, or rows cannot be listed.",
        "404": "There is no such row now.",
        "503": "States are not new enough, or there is no changelog yet.",
        "504": "Only the keys used last are kept, and this one is not among them. The row may exist.",
    }
    errors = {
        status: {
            "description": texts[status],
            **({} if status == "304" else {"content": _content("Error")}),
        }
        for status in sorted({*also, "400", "503"})
    }
    success = {"description": summary, "headers": _HEADERS, "content": _content(schema)}
    return {"summary": summary, "parameters": parameters, "responses": {"200": success, **errors}}


def _content(schema: str) -> Document:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
