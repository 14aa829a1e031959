"""/status for programs (JSON) and for people: plain HTML that needs nothing but a browser, every value escaped."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aiohttp import web

STYLE = (
    "body{font:14px sans-serif;margin:2em}table{border-collapse:collapse}"
    "td,th{padding:2px 10px;text-align:left;border-bottom:1px solid #ddd}"
)
REFRESH_SECONDS = 5
Rows = Iterable[Mapping[str, Any]]


def status_answer(request: web.Request, status: dict[str, Any], page: Callable[[dict[str, Any]], str]) -> web.Response:
    """`status` as JSON, or as `page` makes it where a browser asks."""
    if "text/html" in request.headers.get("Accept", ""):
        return web.Response(text=page(status), content_type="text/html")
    return web.json_response(status)


def html_page(title: str, facts: Mapping[str, Any], tables: Mapping[str, Rows]) -> str:
    """A heading, a table of facts, then a table for each list of rows (dicts with the same keys)."""
    parts = [
        f"<!doctype html><meta charset=utf-8><meta http-equiv=refresh content={REFRESH_SECONDS}>",
        f"<title>{_cell(title)}</title><style>{STYLE}</style><h1>{_cell(title)}</h1><table>",
        *(f"<tr><th>{_cell(name)}<td>{_cell(value)}" for name, value in facts.items()),
        "</table>",
    ]
    for heading, rows in tables.items():
        parts += [f"<h2>{_cell(heading)}</h2>", _table(list(rows))]
    return "".join(parts)


def _table(rows: list[Mapping[str, Any]]) -> str:
    if not rows:
        return "<p>none</p>"
    head = "".join(f"<th>{_cell(name)}" for name in rows[0])
    lines = "".join("<tr>" + "".join(f"<td>{_cell(value)}" for value in row.values()) for row in rows)
    return f"<table><tr>{head}{lines}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return html.escape(", ".join(f"{key} {inner}" for key, inner in sorted(value.items())) or "none")
    return html.escape("" if value is None else str(value))
