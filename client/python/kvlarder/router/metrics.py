"""The router's own metrics, in Prometheus' text.

Thread-safety: as prometheus_client; gauges that are computed read objects of the event loop, which serves /metrics.
"""

import prometheus_client

SERIES = {
    "requests": ("counter", ("server", "outcome"), "Requests, by the server that they were sent to last and how they ended"),
    "choices": ("counter", ("reason",), "Servers chosen, by why"),
    "expected_tokens": ("counter", ("where",), "Tokens of prompts, by where the chosen server was expected to have them"),
    "retries": ("counter", ("server",), "Requests that left a server unanswered and were tried again"),
    "lookups": ("counter", ("outcome",), "Questions to larderd, by how they ended"),
    "tokenizations": ("counter", ("outcome",), "Prompts, by how their token ids were found"),
    "refused": ("counter", ("status",), "Requests that the router itself refused, by the status that it gave"),
    "lookup_seconds": ("histogram", (), "Time that larderd took for a Lookup"),
    "decision_seconds": ("histogram", (), "Time from a whole request until it was known where it goes, without the queue"),
    "queue_seconds": ("histogram", (), "Time that requests waited because all servers were busy"),
    "first_byte_seconds": ("histogram", ("server",), "Time from sending a request to a server until its answer began"),
    "server_up": ("gauge", ("server",), "Whether a server is up"),
    "server_requests": ("gauge", ("server",), "Requests that a server has"),
    "server_queue_seconds": ("gauge", ("server",), "Time that a server is expected to need before it begins with a new prompt"),
    "prefill_tokens_per_second": ("gauge", ("server",), "How fast a server computes prompts, as learnt"),
    "queue_length": ("gauge", (), "Requests that wait because all servers are busy"),
    "body_bytes": ("gauge", (), "Bytes of requests that are held"),
    "larder_up": ("gauge", (), "Whether larderd is asked about requests"),
}
OUTCOMES = {
    "answered": "the whole answer was passed on, whatever its status",
    "aborted": "the client left",
    "stalled": "the client did not take the answer in time",
    "broken": "the server ended in the middle of its answer, or was silent for too long",
    "failed": "no server began to answer",
}
REASONS = {
    "cheapest": "the lowest price by far",
    "device": "among close prices, the server that has most of the prompt in its own memory",
    "sticky": "among those that have as much, the server that answered the beginning of this prompt last",
    "even": "among those that have as much, the server with the fewest tokens under way",
    "only": "one server alone could take it",
    "queue": "by queue alone: what is stored is not known",
    "round_robin": "--policy round_robin",
    "pass": "another path than those of completions",
}
BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


def metric_name(name):
    """Returns the name in Prometheus, without the _total that it adds to counters."""
    return f"larder_router_{name}"


class Metrics:
    def __init__(self):
        self.registry = prometheus_client.CollectorRegistry()
        self._series = {}
        for name, (kind, labels, text) in SERIES.items():
            made = {
                "counter": prometheus_client.Counter,
                "gauge": prometheus_client.Gauge,
                "histogram": prometheus_client.Histogram,
            }[kind]
            more = {"buckets": BUCKETS} if kind == "histogram" else {}
            self._series[name] = made(metric_name(name), text, labels, registry=self.registry, **more)

    def follow(self, servers, budget):
        """Shows the state of these servers and of the memory for bodies."""
        self._series["queue_length"].set_function(lambda: servers.waiting)
        self._series["body_bytes"].set_function(lambda: budget.held)
        for server in servers.all:
            for name, value in (
                ("server_up", lambda one=server: one.up),
                ("server_requests", lambda one=server: one.requests),
                ("server_queue_seconds", lambda one=server: one.queue_s()),
                ("prefill_tokens_per_second", lambda one=server: one.prefill.rate),
            ):
                self._series[name].labels(server.name).set_function(value)

    def text(self):
        return prometheus_client.generate_latest(self.registry)

    def ended(self, server, outcome):
        self._series["requests"].labels("" if server is None else server.name, outcome).inc()

    def refused(self, status):
        self._series["refused"].labels(str(status)).inc()

    def chosen(self, reason, price=None):
        """price: None if the request has no prompt."""
        self._series["choices"].labels(reason).inc()
        if price is not None:
            covered = price.covered
            for where, tokens in (
                ("device", covered.device),
                ("host", covered.host),
                ("disk", covered.disk),
                ("computed", price.computed_tokens),
            ):
                self._series["expected_tokens"].labels(where).inc(tokens)

    def retried(self, server):
        self._series["retries"].labels(server.name).inc()

    def lookup(self, outcome, seconds=None):
        self._series["lookups"].labels(outcome).inc()
        if seconds is not None:
            self._series["lookup_seconds"].observe(seconds)

    def tokenized(self, outcome):
        self._series["tokenizations"].labels(outcome).inc()

    def decided(self, seconds):
        self._series["decision_seconds"].observe(seconds)

    def queued(self, seconds):
        self._series["queue_seconds"].observe(seconds)

    def first_byte(self, server, seconds):
        self._series["first_byte_seconds"].labels(server.name).observe(seconds)

    def daemon_up(self, up):
        self._series["larder_up"].set(up)
