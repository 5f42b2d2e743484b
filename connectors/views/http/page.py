"""Makes the HTML page that shows people which views the API has, and how to ask for their rows."""

from collections.abc import Iterable
from html import escape
from typing import Final

from changelog.connectors.terminal import safe
from changelog.connectors.views.shown import ShownView

STYLE: Final = """body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 52rem; padding: 0 1rem }
code { font-size: 0.9em } table { border-collapse: collapse } td, th { padding: 0.3rem 1rem 0.3rem 0; text-align: left }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #e4e6ea } a { color: #8ab4f8 } }
"""

_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{name}: the present state of each row</title>
<link rel="stylesheet" href="/api.css">
</head>
<body>
<h1>{name}: the present state of each row</h1>
<p>Each answer is JSON. Its header <code>X-Position</code> says up to which position of the changelog it is complete,
and <code>X-Staleness</code> how many seconds ago the changelog was last written. <a href="/openapi.json">The OpenAPI
document</a> has all parameters.</p>
<table>
<tr><th>all rows</th><th>one row</th><th>entity</th></tr>
{views}
</table>
<p>Parameters: <code>?min_position=…</code> and <code>?max_lag=2s</code> wait until the state is new enough;
<code>?prefix=</code>, <code>?from=</code>, <code>?to=</code>, <code>?limit=</code> choose rows.
<a href="/ready">/ready</a>, <a href="/health">/health</a> and <a href="/metrics">/metrics</a> are for monitoring.</p>
</body>
</html>
"""
_VIEW: Final = (
    '<tr><td><a href="/{name}"><code>/{name}</code></a></td><td><code>/{name}/{key}</code></td>'
    "<td><code>{entity}</code></td></tr>"
)


def page(name: str, views: Iterable[ShownView]) -> str:
    """Returns the page as HTML. `name` is the name of the service."""
    rows = [_VIEW.format(name=view.name, key=_key(view), entity=view.entity) for view in views]
    return _PAGE.format(name=escape(name), views="\n".join(rows) or "<tr><td>no entity yet</td></tr>")


def _key(view: ShownView) -> str:
    """Returns placeholders for the values of a view's key, such as `TENANT/ID`, to show in the address of a row."""
    return escape(safe("/".join(name.upper() for name in view.key or ("key",))))
