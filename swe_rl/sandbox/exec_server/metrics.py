"""Prometheus metrics of the exec server: counted on the way, gauges read from the node when asked."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from swe_rl.sandbox.exec_server.answers import Answers
from swe_rl.sandbox.exec_server.node import Node
from swe_rl.sandbox.server.metrics import ServerMetrics


class ExecMetrics(ServerMetrics):
    """What this node does and holds."""

    def __init__(self, node: Node, answers: Answers) -> None:
        self._node, self._answers = node, answers
        super().__init__("exec")

    def collect(self) -> Iterator[Metric]:
        node, pulls = self._node, self._node.images.puller.jobs.values()
        pulling = sum(job.state == "pulling" for job in pulls)
        gauges = [
            ("swe_exec_engine_up", "1 while the container engine answers", float(not node.engine_error)),
            ("swe_exec_containers", "managed containers", len(node.containers)),
            ("swe_exec_requests_running", "changing requests under way", self._answers.running),
            ("swe_exec_pulls_running", "image pulls under way", pulling),
            ("swe_exec_disk_fraction", "how full the engine's disk is", node.disk_fraction),
        ]
        counters = [
            ("swe_exec_containers_created", "containers created", node.created),
            ("swe_exec_containers_expired", "containers removed for their age", node.removed_for_age),
            ("swe_exec_containers_over_disk", "containers ended for their disk use", node.ended_for_disk),
            ("swe_exec_images_evicted", "images evicted", node.images.evicted),
            ("swe_exec_answers_replayed", "requests answered by their idempotency key", self._answers.replayed),
        ]
        for name, text, value in gauges:
            yield GaugeMetricFamily(name, text, value)
        for name, text, value in counters:
            yield CounterMetricFamily(name, text, value)
