"""What `/metrics` shows, for Prometheus. Every app has a registry of its own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Counters, gauges and histograms of one endpoint."""

    media_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own = self.registry
        self.requests = Counter("arr_coc_requests", "requests by HTTP status", ["status"], registry=own)
        self.cancelled = Counter("arr_coc_cancelled", "requests whose client left", registry=own)
        self.waiting = Gauge("arr_coc_waiting", "requests in the queue", registry=own)
        self.running = Gauge("arr_coc_running", "requests that are being answered", registry=own)
        self.tokens = Counter("arr_coc_tokens", "tokens of prompts and of answers", ["kind"], registry=own)
        self.visual = Counter("arr_coc_visual_tokens", "visual tokens: all, encoded, kept", ["kind"], registry=own)
        self.batch = Histogram(
            "arr_coc_batch", "requests answered together", buckets=(1, 2, 4, 8, 16, 32), registry=own
        )
        self.wait = Histogram("arr_coc_wait_seconds", "time in the queue", buckets=SECONDS, registry=own)
        self.first = Histogram(
            "arr_coc_first_token_seconds", "from arrival to first token", buckets=SECONDS, registry=own
        )
        self.total = Histogram("arr_coc_request_seconds", "from arrival to last token", buckets=SECONDS, registry=own)

    def render(self) -> bytes:
        return generate_latest(self.registry)
