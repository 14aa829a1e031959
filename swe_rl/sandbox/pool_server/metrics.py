"""Prometheus metrics of the pool: counted on the way, gauges read from the book when asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from swe_rl.sandbox.pool_server.pool import Pool
from swe_rl.sandbox.server.metrics import ServerMetrics


class PoolMetrics(ServerMetrics):
    """Leases, nodes and the waiting line."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        super().__init__("pool")

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
