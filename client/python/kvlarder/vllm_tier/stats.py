"""Counters of LarderTier, as vLLM's offloading collects and shows them: how much each has grown since the last report."""

COUNTERS = {
    "blocks_loaded": ("Blocks loaded into the primary tier", ()),
    "blocks_load_failed": ("Blocks that were found and could not be loaded", ()),
    "blocks_stored": ("Blocks stored from the primary tier", ()),
    "blocks_duplicate": ("Blocks that were stored already", ()),
    "blocks_store_failed": ("Blocks that could not be stored", ()),
    "blocks_dropped": ("Blocks that were neither stored nor loaded because a queue was full", ()),
    "keys_asked": ("Blocks that the daemon was asked for", ()),
    "keys_found_host": ("Blocks that were found in host memory", ()),
    "keys_found_disk": ("Blocks that were found on disk", ()),
    "keys_impatient": ("Blocks that were a miss because no answer came in time", ()),
    "keys_refused": ("Blocks that were a miss because no daemon served", ()),
    "keys_unanswered": ("Blocks that were a miss because the daemon failed to answer", ()),
    "sessions": ("Sessions with a daemon", ()),
    "attach_failures": ("Tries to reach a daemon that failed", ()),
    "breaker_opened": ("Times that a daemon answered too slowly too often", ()),
    "hints": ("Hints by their final outcome", ("action", "outcome")),
}


def metric_name(name):
    """Returns the name in Prometheus, without the _total that it adds to counters."""
    return f"vllm:larder_tier_{name}"


class Growth:
    """How much counts since the beginning have grown since they were seen last.  One thread uses it."""

    def __init__(self):
        self._seen = {}

    def of(self, totals):
        """totals: {(name, labels): count}.  Returns those that have grown, with how much."""
        grown = {key: total - self._seen.get(key, 0) for key, total in totals.items() if total != self._seen.get(key, 0)}
        self._seen.update(totals)
        return grown
