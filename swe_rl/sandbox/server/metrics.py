"""Prometheus metrics of a server: requests are counted on the way, everything else is read when asked."""

from __future__ import annotations

from aiohttp import web
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.registry import Collector


class ServerMetrics(Collector):
    """`observe` each request; `answer` GET /metrics. A subclass yields the server's own families from `collect`."""

    def __init__(self, server: str) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._seconds = Histogram(
            f"swe_{server}_request_seconds",
            "time to answer, by route and status",
            ["route", "status"],
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000),
            registry=self._registry,
        )

    def observe(self, route: str, status: int, seconds: float) -> None:
        self._seconds.labels(route, str(status)).observe(seconds)

    async def answer(self, request: web.Request) -> web.Response:
        """The route /metrics, in Prometheus' text form."""
        return web.Response(body=generate_latest(self._registry), content_type="text/plain")
