"""Counters of the connector, as vLLM collects them: deltas from each process, added up, shown by its Prometheus."""

COUNTERS = {
    "lookups": "Requests whose prefix was asked for",
    "lookups_impatient": "Lookups that were a miss because no answer came in time",
    "steps_lookups_cut": "Steps that left waiting requests to be looked up in the next step, because lookups had taken 1 ms",
    "lookups_refused": "Lookups that were a miss because no daemon served",
    "hit_tokens_host": "Tokens to be loaded that were found in host memory",
    "hit_tokens_disk": "Tokens to be loaded that were found on disk",
    "blocks_loaded": "Blocks loaded, of all ranks",
    "blocks_load_failed": "Blocks that could not be loaded and were computed, of all ranks",
    "loads_by_layer": "Loads of which one layer came after the other while vLLM computed with those before",
    "loads_late": "Loads that ended at their deadline",
    "loads_unserved": "Loads that ended because no daemon served",
    "loads_cancelled": "Loads that ended because their request did",
    "loads_failed_otherwise": "Loads with blocks that were missing, damaged or revoked, or did not fit into the queue",
    "blocks_stored": "Blocks stored, of all ranks",
    "blocks_duplicate": "Blocks that were stored already, of all ranks",
    "blocks_store_failed": "Blocks that could not be stored, of all ranks",
    "blocks_given_up": "Blocks that were not stored because vLLM's cache was reset, of all ranks",
    "blocks_dropped": "Blocks that were not stored because vLLM freed them before stores had room for them",
    "blocks_reused_unstored": "Blocks that vLLM reused before they were stored, with store_policy lazy",
    "bytes_loaded": "Bytes loaded",
    "bytes_stored": "Bytes stored",
    "requests_passed": "Requests that are neither looked up nor stored (multimodal, embeddings, unknown adapters)",
    "restores": "Prefixes that were computed from the head and loaded from the tail at once",
    "restored_tokens_computed": "Tokens of restores that were computed",
    "restored_tokens_loaded": "Tokens of restores that were loaded, which hit_tokens do not count",
    "claims_loaded": "Blocks loaded by restores, of all ranks",
    "claims_failed": "Tries of restores to load a block that was missing, damaged or revoked, of all ranks",
    "claims_cancelled": "Loads of restores that were withdrawn or late, of all ranks",
    "directives": "Requests of the daemon to pin, unpin or drop blocks that vLLM itself has",
    "device_reports_failed": "Reports of the blocks that vLLM itself has that could not be sent; all is reported again",
    "resets": "Times that the cache was reset",
    "sessions": "Sessions with a daemon, of all processes",
    "attach_failures": "Tries to reach a daemon that failed",
    "breaker_opened": "Times that a daemon answered too slowly too often",
}
TIMES = {
    "load_seconds": "Time that a load took on one rank",
    "layers_seconds": "Time that a step waited for the layers of its load",
    "store_seconds": "Time that a store took on one rank",
    "restore_seconds": "Time from the beginning of a restore until its whole prefix was there",
    "lookup_seconds": "Time from asking for a prefix until its answer was used",
}
TIME_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
TIMES_MAX = 10_000  # observations in one report


def metric_name(name):
    """Returns the name in Prometheus, without the _total that it adds to counters."""
    return f"vllm:larder_{name}"


def joined(first, second):
    """Returns both reports as one."""
    both = dict(first)
    for name, value in second.items():
        both[name] = (both[name] + value if name in COUNTERS else (both[name] + value)[:TIMES_MAX]) if name in both else value
    return both


def summary(report):
    """Returns what the log line of an interval shows."""
    line = {name: report[name] for name in COUNTERS if report.get(name)}
    for name in TIMES:
        if values := sorted(report.get(name, ())):
            line[f"{name}_p50"] = round(values[len(values) // 2], 4)
            line[f"{name}_max"] = round(values[-1], 4)
    return line


class Collector:
    """Counts in one process.  One thread uses it."""

    def __init__(self, interval_s, clock):
        self._interval_s, self._clock = interval_s, clock
        self._next = clock()
        self._report = {}
        self._seen = {}

    def add(self, name, count=1):
        if count:
            self._report[name] = self._report.get(name, 0) + count

    def observe(self, name, seconds):
        times = self._report.setdefault(name, [])
        if len(times) < TIMES_MAX:
            times.append(seconds)

    def follow(self, totals):
        """Adds how much counts since the beginning have grown; names that are not counters are passed over."""
        for name, total in totals.items():
            if name in COUNTERS:
                self.add(name, total - self._seen.get(name, 0))
                self._seen[name] = total

    def take(self, totals=dict):
        """Returns what was counted since the last report, or None if it is too early or there is nothing.

        totals: returns counts since the beginning, as for `follow`; called once an interval, because steps are short.
        """
        now = self._clock()
        if now < self._next:
            return None
        self._next = now + self._interval_s
        self.follow(totals())
        report, self._report = self._report, {}
        return report or None
