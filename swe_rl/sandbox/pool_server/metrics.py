"""Prometheus metrics of the pool: counted on the way, gauges read from the book when asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from swe_rl.sandbox.pool_server.pool import Pool


class PoolMetrics(Collector):
    """`observe` each request; `render` for GET /metrics."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._seconds = Histogram(
            "swe_pool_request_seconds",
            "time to answer, by route and status",
            ["route", "status"],
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000),
            registry=self._registry,
        )

    def observe(self, route: str, status: int, seconds: float) -> None:
        self._seconds.labels(route, str(status)).observe(seconds)

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        pool = self._pool
        leases = GaugeMetricFamily("swe_pool_leases", "leases that hold a slot, by state", labels=["state"])
        for state, count in Counter(lease.state.value for lease in pool.book.active()).items():
            leases.add_metric([state], count)
        nodes = GaugeMetricFamily("swe_pool_nodes", "nodes by state", labels=["state"])
        for state, count in Counter(node.state for node in pool.fleet.nodes.values()).items():
            nodes.add_metric([state], count)
        yield leases
        yield nodes
        yield GaugeMetricFamily("swe_pool_free_slots", "slots of usable nodes that are free", pool.fleet.free_slots())
        yield GaugeMetricFamily("swe_pool_waiting", "requests in line", len(pool.allocator.line))
        yield CounterMetricFamily("swe_pool_leases_expired", "leases that expired", pool.reaper.leases_expired)
        yield CounterMetricFamily("swe_pool_leases_lost", "leases whose container vanished", pool.reaper.leases_lost)
        yield CounterMetricFamily("swe_pool_orphans", "containers without lease", pool.reaper.orphans_destroyed)
