"""The part of the connector that lives in vLLM's scheduler: it decides what is looked up, loaded and stored.

vLLM calls it from the one thread of its scheduler.  No method waits, except empty and close.

A request:
    asked ----answer----> found --scheduled with a load--> loading --all ranks reported--> running | failed
      |  |                  \\--scheduled with a load by layer--> running | failed
      |  \\--patience over, nothing stored--> missed --scheduled--> running --preempted--> asked again
      |                                        (failed stays: what could not be loaded once is computed)
      +-- passed: neither looked up nor stored
With LarderScheduler also, where that is sooner than loading alone:
    found --pays--> chosen --scheduled--> restoring --all is there, or computed from now on--> running
                                              \\--reset while a worker writes a page--> ending --written--> running

Invariants (check_invariants):
  * Blocks that a job reads or writes are pinned in vLLM's BlockPool from the call that plans the job until all of its
    ranks have reported it: a preempted or aborted request frees its blocks at once, and workers hear of it later.
  * A promise is held from the answer until all ranks have loaded, or the request is scheduled without a load or ends.
  * A request loads at most once at a time; one that failed to load is computed, and does not ask again.
  * No request waits for its lookup for ever: a step that has no time to poll all lookups is followed by steps that poll the
    others first.
  * A step has at most one load by layer, which has ended when the step has.  If it failed, no request goes on from its blocks
    or from what the step computed from them, and other requests find these blocks neither in vLLM's own cache nor in Larder.
  * A request stores blocks of one generation only: after reset_cache nothing that was computed before is stored.
  * With eager stores, a block that finds no room among the stores under way waits for it as long as vLLM runs its request.  A
    request's blocks are stored in their order.
"""

import array
import collections
import contextlib
import time

import kvlarder
from kvlarder.vllm import device_blocks, lazy_stores, metadata, restores, worker

HOST, DISK = kvlarder.Tier.HOST.value, kvlarder.Tier.DISK.value
LOAD_MOST_S = 60.0  # the longest time that a request waits for a load
STORE_BLOCKS_MAX = 64  # in one job
TRIES_MAX = 3
FREES_SOON_S = 0.1
# A step whose lookups have taken so long begins no other one, because what vLLM computes next waits for its scheduler.
LOOKUPS_STEP_S = 1e-3
READS_MOST_S = 1.0  # copying one part of a store takes milliseconds
# A step may wait for its load by layer, as estimated, for this part of the time that it computes, and so long.
STALL_PART, STALL_S = 0.1, 0.005
LAYERS_MOST_S = 2.0  # a prefix whose load takes longer, as estimated, is not loaded by layer
LAYERS_PATIENCE_S = 0.5  # a load by layer ends so long after its estimated end: a daemon that hangs holds up a step until then
LAYERS_OFF_S = 30.0  # after a load by layer has failed, none begins for so long


class Request:
    """What is known of one request of vLLM."""

    __slots__ = (
        "vllm", "state", "content", "chain", "lookup", "asked_from", "asked_at", "found_blocks", "first_block", "load", "sources",
        "saved", "due", "stale", "adapter", "until_block", "tries", "by_layer",
    )  # fmt: skip

    def __init__(self, vllm):
        self.vllm = vllm
        self.state = "asked"
        self.content = self.chain = None  # None: not known yet, because of an adapter or the tenant
        self.lookup = 0  # job of the cache; 0: none
        self.asked_from = 0  # the token from which on the lookup asks
        self.asked_at = None  # when vLLM first asked for it
        self.found_blocks = None  # None: not known
        self.first_block = 0  # of the load that vLLM was offered
        self.by_layer = False  # whether that load goes layer by layer
        self.until_block = 0  # the end of what is restored, if it is chosen or restoring
        self.tries = 0  # to admit it for a restore when the step had no room for a block
        self.load = 0  # job
        self.sources = (0, 0)  # tokens of the load that were in host memory, and on disk
        self.saved = None  # blocks before this one are stored, or need not be; None: not scheduled yet
        self.due = 0  # blocks from `saved` to this one are computed and wait to be stored
        self.stale = False  # has KV of an earlier generation
        self.adapter = None  # future of its adapter's name


class Job:
    """Blocks that all ranks load, or that those store which write."""

    __slots__ = ("load", "request", "pages", "ranks", "good", "blocks", "begun", "step", "computed")

    def __init__(self, load, request, pages, ranks, begun, step=None, computed=None):
        """request: None for stores; step: of lazy stores, when it was ordered; computed: of loads by layer, a list for what
        its step computes from the loaded blocks: (Request, number of the first block, pages, Request.saved before it)."""
        self.load, self.request, self.pages, self.ranks, self.begun, self.step = load, request, pages, ranks, begun, step
        self.blocks, self.good, self.computed = len(pages), len(pages), computed


class Prefill:
    """How fast this engine computes prompts, in tokens per second."""

    LEAST, MOST = 100.0, 1e6

    def __init__(self):
        self.rate, self.measured = 2_000.0, False
        self._steps = collections.deque()  # under way: (tokens, when it began)
        self._ended = 0.0  # the last one

    def step(self, tokens, now):
        """A step begins.  tokens: of its prompts; steps that only decode say nothing about prompts."""
        self._steps.append((tokens, now))

    def step_ended(self, now):
        if not self._steps:
            return
        tokens, begun = self._steps.popleft()
        if tokens >= 64:
            seconds = max(now - max(begun, self._ended), 1e-4)
            measured = min(max(tokens / seconds, self.LEAST), self.MOST)
            self.rate += 0.2 * (measured - self.rate)
            self.measured = True
        self._ended = now


class LayerLoads:
    """When a prefix is loaded layer by layer: while vLLM computes with the first layers, the next ones come.  The whole step waits
    where they come later."""

    def __init__(self, layers, step_tokens):
        """step_tokens: that one step computes of a request."""
        self._layers, self._step_tokens = layers, step_tokens
        self._bytes_per_s = None  # None: not measured yet
        self._off_until = 0.0

    def observe(self, size, seconds):
        """A load of so many bytes from the pool has ended."""
        rate = size / max(seconds, 1e-6)
        self._bytes_per_s = rate if self._bytes_per_s is None else self._bytes_per_s + 0.2 * (rate - self._bytes_per_s)

    def failed(self, now):
        self._off_until = now + LAYERS_OFF_S

    def load_s(self, size):
        """As estimated; 0 if no load was measured."""
        return size / self._bytes_per_s if self._bytes_per_s else 0.0

    def pays(self, size, tokens, prefill, now):
        """Returns whether `size` bytes are to be loaded so before `tokens` more are computed."""
        if self._bytes_per_s is None or not prefill.measured or now < self._off_until:
            return False
        load_s, compute_s = self.load_s(size), min(tokens, self._step_tokens) / prefill.rate
        stall_s = load_s / self._layers + max(0.0, load_s - compute_s)
        return load_s <= LAYERS_MOST_S and stall_s <= STALL_PART * compute_s + STALL_S


class SchedulerSide:
    def __init__(self, config, facts, contents, hellos, collector, log, clock=time.monotonic):
        """hellos: of all ranks, in their order.  Raises ValueError if ranks are missing or lay out their KV differently."""
        if len(hellos) != facts.ranks:
            raise ValueError(f"{len(hellos)} of {facts.ranks} ranks have told Larder where their KV lies")
        if len({(hello.layout, hello.layers, hello.block_bytes) for hello in hellos}) != 1:
            raise ValueError(f"the ranks lay out their KV differently: {sorted({hello.layout for hello in hellos})}")
        self._config, self._facts, self._contents = config, facts, contents
        self._collector, self._log, self._clock = collector, log, clock
        self._block, self._hellos = facts.block_tokens, hellos
        self._restores = None  # restores.Restores, with LarderScheduler
        self._layers = None  # LayerLoads, where vLLM allows them
        self._layered = None  # Job of the load by layer in the step that is being scheduled
        self._admitted = []  # requests of that step whose blocks vLLM has just found or allocated
        self._step_layered = False  # whether the last step that was built has a load by layer
        self._ending = []  # requests in this state, and those that were
        self._requests, self._jobs = {}, {}
        self._last_job = 0
        self._writers = sum(facts.writes(rank) for rank in range(facts.ranks))
        self._fences = [worker.SharedFence.opened(hello.fence) for hello in hellos if facts.writes(hello.rank)]
        if None in self._fences:
            self._log.warning("a worker's memory cannot be seen: vLLM's prefix cache cannot be reset while blocks are stored")
        self._stores_ordered = 0
        self._pool = None
        self._lazy = None  # LazyStores, with store_policy "lazy"
        self._device = None  # DeviceBlocks, with report_device
        self._blocks_lock = contextlib.nullcontext()  # held while free blocks are looked at
        self._step = metadata.Step()
        self._pinned = 0  # blocks of stores
        self._loading = self._asking = 0
        self._lookups_s = 0.0  # seconds that this step has spent on lookups
        self._looked_up = set()  # ids of the requests whose lookups this step has polled
        self._turned_away = False  # whether this step has left lookups to the next one
        self._yielding = set()  # ids of requests that wait until a step has polled the lookups of all others
        self._prefill = Prefill()
        self._state = None
        self._mixed = False  # vLLM's own cache has KV of an earlier generation
        self._cache = kvlarder.EngineCache(
            engine_id=facts.engine_id,
            role="scheduler",
            variants=worker.variants_of(facts, hellos[0].layout, hellos[0].layers),
            socket_dir=config.socket_dir,
            tenant=config.tenant,
            lookup_patience_s=config.patience_ms / 1e3,
            promise_life_s=config.promise_life_s,
            loaders=0,
            storers=0,
            contents=[contents.of(None)],  # so that routers find what is stored, also after a restart
            device_blocks=self._reports_device,
        )

    # ---- requests that wait

    def bind_block_pool(self, pool):
        self._pool = pool
        if self._reports_device and not device_blocks.fits(pool):
            self._log.warning("this vLLM's block pool is not known: the daemon is not told which blocks vLLM itself has")
        elif self._reports_device:
            self._device = device_blocks.DeviceBlocks(pool, self._cache, self, self._device_pins_max, self._log)
            self._blocks_lock = self._device.lock
        if self._config.store and self._config.store_policy == "lazy":
            why = "" if self._facts.prefix_caching else "its prefix caching is off"
            if why := why or ("" if lazy_stores.fits(pool) else "its block pool is not known"):
                self._log.warning("store_policy 'lazy' does not fit this vLLM, blocks are stored once computed: %s", why)
            else:
                self._lazy = lazy_stores.LazyStores(pool, self._collector)

    def on_new_request(self, vllm):
        request = Request(vllm)
        self._requests[vllm.request_id] = request
        if _passes(vllm):
            request.state = "passed"
            self._collector.add("requests_passed")
        elif self._name(request) and self._asking < self._config.prefetch_max and self._lazy is None:
            self._ask(request)

    def matched_tokens(self, vllm, computed):
        """Returns (tokens that can be loaded beyond `computed`, whether asynchronously); (None, False) is not yet.

        vLLM asks as often as it likes, and only about requests that are not running.
        """
        request = self._requests.get(vllm.request_id)
        if request is None or request.state in ("passed", "loading"):
            return 0, False
        if request.state in ("running", "ending") or request.stale:  # it was preempted, or the cache was reset
            self._begin_again(request)
        if request.state == "failed" or not self._config.load:
            return 0, False
        if request.state == "missed" and self._lazy is not None and computed < request.asked_from:
            request.state = "asked"  # vLLM has lost blocks since it asked, which may be stored
        if request.state == "missed" or vllm.skip_reading_prefix_cache:
            return 0, False
        wanted = (vllm.num_tokens - 1) // self._block
        first = computed // self._block
        if wanted <= first:
            return 0, False
        if vllm.request_id in self._yielding:
            return self._later(wanted - first)
        if self._lookups_s >= LOOKUPS_STEP_S:
            self._turned_away = True
            return self._later(wanted - first)
        self._looked_up.add(vllm.request_id)
        now = self._clock()
        if request.asked_at is None:
            request.asked_at = now
        answer = self._answer_of(request, first, wanted, now)
        self._lookups_s += self._clock() - now
        return answer

    def _answer_of(self, request, first, wanted, now):
        """Asks, or polls the lookup, and returns what matched_tokens does.  The blocks from `first` to `wanted` are of use."""
        if self._lazy is not None and request.lookup and first * self._block < request.asked_from:
            self._end_lookup(request)  # vLLM has lost blocks since it asked
        new = request.lookup == 0
        if new and not self._ask(request, first):
            return (0, False) if request.state == "passed" else self._not_yet(request, now)
        # With lazy stores vLLM admits a request in a later step than the one that asks, because this step must first store
        # the blocks that vLLM then reuses for it.
        found = None if new and self._lazy is not None and not self._cache.state else self._cache.poll_lookup(request.lookup)
        if found is None:
            return self._later(wanted - first)
        self._answer(request, found, now)
        blocks = min(request.found_blocks, wanted) - first
        if blocks <= 0:
            return 0, False
        if self._restores is not None and self._is_restored(request, first, first + blocks):
            request.state, request.until_block = "chosen", first + blocks
            return 0, False
        request.by_layer = self._goes_by_layer(request, first, first + blocks, now)
        if not request.by_layer and self._loading >= self._config.loads_max:
            return self._later(blocks)  # loads have deadlines, so that its turn comes
        if self._lazy is not None and self._step.loads:
            return self._later(blocks)  # LazyStores has stored the blocks that one load overwrites, not those of two
        request.first_block = first
        return blocks * self._block, not request.by_layer

    def _later(self, blocks):
        """Returns the `not yet` of matched_tokens, for a request that may load so many blocks in a later step."""
        if self._lazy is not None:
            self._lazy.expect(blocks)
        return None, False

    def allocated(self, vllm, block_ids, external_tokens):
        """vLLM schedules a request, and loads external_tokens (0: none) of it into the blocks that it has now."""
        request = self._requests.get(vllm.request_id)
        if request is None or request.state == "loading":
            return
        self._admitted.append(request)
        if external_tokens == 0 and request.state == "chosen":
            return  # build_step begins it
        if external_tokens == 0:
            self._end_lookup(request)
            if request.state not in ("passed", "failed"):
                request.state = "running"
            return
        first, last = request.first_block, request.first_block + external_tokens // self._block
        pages = list(block_ids[first:last])
        promise = self._cache.poll_lookup(request.lookup)
        job = Job(True, request, pages, self._facts.ranks, self._clock(), computed=[] if request.by_layer else None)
        number = self._plan(job)
        if request.by_layer:
            self._layered, request.state = job, "running"
            deadline_s = LAYERS_PATIENCE_S + self._layers.load_s(len(pages) * self._hellos[0].block_bytes)
        else:
            request.load, request.state = number, "loading"
            self._loading += 1
            deadline_s = self._config.load_timeout_ms / 1e3 + self._config.load_patience * external_tokens / self._prefill.rate
        disk = self._cache.lookup_tiers(request.lookup)[first:last].count(DISK) * self._block
        request.sources = (external_tokens - disk, disk)
        self._collector.add("hit_tokens_host", external_tokens - disk)
        self._collector.add("hit_tokens_disk", disk)
        self._step.loads.append(
            metadata.Load(
                job=number,
                request=vllm.request_id,
                digests=request.chain.digests(first, last),
                pages=array.array("I", pages).tobytes(),
                promise=promise.promise if promise is not None else 0,
                deadline_s=min(deadline_s, LOAD_MOST_S),
                by_layer=request.by_layer,
            )
        )

    def hit_sources(self, vllm):
        """Returns (tokens in host memory, tokens on disk) of the load that was just planned."""
        request = self._requests.get(vllm.request_id)
        return (0, 0) if request is None else request.sources

    # ---- steps

    def build_step(self, scheduled, resumed, block_ids_of):
        """Returns what the workers do in this step.

        scheduled: {request id: (tokens computed before, tokens of this step)}; resumed: ids of those that were
        preempted before; block_ids_of(id): all blocks of a scheduled request.
        """
        now = self._clock()
        self._end_lookups_of_step()
        self._step_layered = self._layered is not None
        if scheduled:
            self._prefill.step(0 if self._step_layered else self._prompt_tokens(scheduled), now)
        self._say_state()
        self._keep_promises()
        if self._device is not None:
            self._device.begin_step()
        for request_id, (done, tokens) in scheduled.items():
            request = self._requests.get(request_id)
            if request is not None and request.state == "chosen":
                self._begin_restore(request, done + tokens, block_ids_of)
        if self._layered is not None:
            self._note_computed(self._layered, scheduled, block_ids_of)
        self._layered, self._admitted = None, []
        if self._lazy is not None:
            self._lazy.begin_step()
        if self._config.store and not self._mixed and (self._lazy is not None or not self._state):
            running = [(self._requests.get(request_id), *tokens) for request_id, tokens in scheduled.items()]
            running = [one for one in running if one[0] is not None and one[0].state in ("running", "failed") and not one[0].stale]
            # A long prompt whose blocks wait must not take the room of short ones, which would end without it.
            for request, done, tokens in sorted(running, key=lambda one: self._waiting(one[0])):
                self._plan_store(request, done, tokens, request.vllm.request_id in resumed, block_ids_of)
            if self._lazy is not None and not self._state:
                self._order_due()
        step, self._step = self._step, metadata.Step()
        return step

    def _end_lookups_of_step(self):
        """vLLM asks about waiting requests in the same order in each step.  If this step turned some of them away, those that it
        polled wait until a step has polled all others."""
        if self._turned_away:
            self._collector.add("steps_lookups_cut")
            self._yielding |= self._looked_up
        else:
            self._yielding = set()
        self._lookups_s, self._looked_up, self._turned_away = 0.0, set(), False

    def _prompt_tokens(self, scheduled):
        """Returns how many tokens of prompts a step computes."""
        total = 0
        for request_id, (done, tokens) in scheduled.items():
            request = self._requests.get(request_id)
            end = done + tokens if request is None else min(done + tokens, request.vllm.num_prompt_tokens)
            total += max(0, end - done)
        return total

    def step_computed(self):
        """The workers have computed a step, the oldest one under way."""
        self._prefill.step_ended(self._clock())

    def on_report(self, report):
        for ended in report.ended:
            job = self._jobs.get(ended.job)
            if job is None:
                continue
            self._measure(job, ended)
            job.good = min(job.good, ended.good)
            job.ranks -= 1
            if job.ranks == 0:
                self._end_job(ended.job)

    def finished(self, vllm):
        """A request has ended, by itself or not; its blocks are freed now."""
        request = self._requests.pop(vllm.request_id, None)
        if request is None:
            return
        self._yielding.discard(vllm.request_id)
        self._drop_due(request)
        if request.state == "loading":
            self._step.cancels.append(request.load)
            return
        self._end_restore(request, freed=True)
        self._end_lookup(request)

    @property
    def has_work(self):
        """Whether vLLM must keep stepping although it has no requests: reports come with steps."""
        return bool(self._jobs) or bool(self._step.cancels) or self._restores_end

    @property
    def frees_blocks_soon(self):
        """Whether stores under way alone hold blocks, so that vLLM should wait a moment instead of preempting."""
        since = self._clock() - FREES_SOON_S
        return self._restores_end or any(
            not job.load and job.begun > since and any(self._pool.blocks[page].ref_cnt == 1 for page in job.pages)
            for job in self._jobs.values()
        )

    def enable_layers(self, step_tokens):
        """From now on, prefixes are loaded layer by layer where that pays.  step_tokens: that a step computes of a request."""
        if self._config.layer_by_layer and self._lazy is None:
            self._layers = LayerLoads(self._hellos[0].layers, step_tokens)

    def _goes_by_layer(self, request, first, last, now):
        if self._layers is None or self._layered is not None or _keeps_step(request.vllm):
            return False
        if self._loading or (self._restores is not None and self._restores.under_way):
            return False  # they would share what carries the bytes
        if self._tiers(request, last)[first:].count(HOST) != last - first:
            return False
        size = (last - first) * self._hellos[0].block_bytes
        return self._layers.pays(size, request.vllm.num_tokens - last * self._block, self._prefill, now)

    def _note_computed(self, job, scheduled, block_ids_of):
        """Remembers what a step computes, and which requests have blocks of its load by layer: these were admitted in this
        step, because vLLM had none of those blocks before."""
        sharing = [request for request in self._admitted if request is not job.request]
        for request_id, (done, tokens) in scheduled.items():
            request = self._requests.get(request_id)
            if request is None:
                continue
            first, pages = done // self._block, ()
            if request is job.request or (request in sharing and job.pages[0] in block_ids_of(request_id)):
                first = job.request.first_block
                pages = block_ids_of(request_id)[first : -(-(done + tokens) // self._block)]
            job.computed.append((request, first, pages, request.saved))

    def _take_back(self, job):
        """A load by layer has failed.  vLLM makes only the first of the requests that share the loaded blocks compute them again.
        That request may be aborted before it has, so here each of the requests does."""
        self._layers.failed(self._clock())
        for request, first, pages, saved in job.computed:
            if request.saved is not None:  # no store of this step was carried out, also none of a block that had waited
                request.saved = min(request.saved, first, first if saved is None else saved)
                request.due = request.saved
            if not pages:
                continue
            self._pool.evict_blocks(set(pages))
            self._end_restore(request)
            if self._requests.get(request.vllm.request_id) is request:
                request.vllm.num_computed_tokens = min(request.vllm.num_computed_tokens, first * self._block)
        if job.request.state == "running":
            job.request.state = "failed"

    # ---- with LarderScheduler

    def enable_restores(self, chunk_tokens, profile=None):
        """From now on, prefixes are computed and loaded at once where that pays.  chunk_tokens: that a step computes of one
        request at most.  Returns why that is not possible, or ''."""
        if not self._config.load:
            return "this engine loads nothing"
        if chunk_tokens < self._block:
            return f"a step computes {chunk_tokens} tokens of a request, less than a block of {self._block}"
        boards = [hello.boards and worker.SharedBoards.opened(hello.boards) for hello in self._hellos]
        if not all(boards):
            return "the memory of a worker cannot be seen"
        try:
            self._restores = restores.Restores(
                self._facts, self._hellos, boards, self._pool, chunk_tokens, self._collector, self._log, profile
            )
        except (RuntimeError, ValueError) as error:
            return str(error)
        return ""

    def begin_step(self, tokens, decode_tokens):
        """Before vLLM schedules a step, which computes `tokens` at most, decode_tokens of which it decodes.  Returns
        requests of vLLM with the tokens that their blocks have now, which may be more than it has computed."""
        restored, granted = self._restores.next_step(tokens, decode_tokens)
        for request_id, _ in restored:
            self._end_lookup(self._requests[request_id])
            self._requests[request_id].state = "running"
        ending, self._ending = self._ending, []
        for request in ending:
            if self._restores.pins(request.vllm.request_id):
                self._ending.append(request)
            elif request.state == "ending":
                request.state = "running"
        here = [(request_id, blocks * self._block) for request_id, blocks in restored] + granted
        return [(self._requests[request_id].vllm, tokens) for request_id, tokens in here]

    def tokens_of_step(self, vllm, computed, tokens):
        """Returns how many of the tokens that vLLM wants to compute of a request, from `computed` on, it computes in this
        step."""
        request = self._requests.get(vllm.request_id)
        if request is None:
            return tokens
        if request.state == "restoring":
            return self._restores.granted_tokens(vllm.request_id, computed, tokens)
        if request.state == "ending":
            return 0  # a worker is writing one of its pages
        if request.state != "chosen":
            return tokens
        whole = self._restores.first_tokens(computed, tokens, request.until_block)
        request.tries += whole == 0
        return whole

    def held_tokens(self, vllm):
        """Returns for how many tokens a request needs blocks, with those that are not computed in this step; 0 if only for
        those that are."""
        request = self._requests.get(vllm.request_id)
        return request.until_block * self._block if request is not None and request.state == "chosen" else 0

    def is_restoring(self, vllm):
        request = self._requests.get(vllm.request_id)
        return request is not None and request.state in ("restoring", "ending")

    def step_scheduled(self, scheduled):
        """scheduled: {request id: tokens of this step}."""
        for request_id in self._restores.step_scheduled(scheduled):
            self._end_restore(self._requests[request_id])

    def step_ended(self, prompts, decode_tokens, seconds):
        """prompts: (begin, end) of the tokens of prompts that the step computed."""
        if not self._step_layered:  # otherwise it may have waited
            self._restores.observe_step(prompts, decode_tokens, seconds)

    def preempted(self, vllm):
        """vLLM frees the blocks of a running request now."""
        if (request := self._requests.get(vllm.request_id)) is not None:
            self._end_restore(request, freed=True)

    @property
    def restores(self):
        """For tests and measurements: Restores, or None."""
        return self._restores

    # ---- resets

    def reset(self, clean):
        """From now on nothing is found that was stored before.

        clean: vLLM's own cache was emptied, too.  If it was not, requests may go on from old KV, so nothing is stored
        until a clean reset.
        """
        self._collector.add("resets")
        self._mixed = not clean
        if self._mixed:
            self._log.warning("vLLM's own cache could not be emptied: nothing is stored in Larder until it is")
        self._contents.reset()
        if self._lazy is not None:
            self._lazy.forget()
        if self._device is not None:
            self._device.forget_unnamed()
        for request in self._requests.values():
            if request.state != "loading":
                self._end_restore(request)
                self._end_lookup(request)
            self._collector.add("blocks_given_up", self._waiting(request))
            request.stale, request.due = True, 0

    def empty(self, reset):
        """Empties vLLM's own cache by calling `reset`, between two steps.  Returns whether that was possible."""
        with contextlib.nullcontext() if self._device is None else self._device.resetting():
            self._drain()
            was_emptied = reset()
        if was_emptied:
            self._contents.emptied()
            if self._mixed:
                self._mixed = False
                self._log.info("vLLM's own cache is empty: blocks are stored in Larder again")
        return was_emptied

    def _drain(self):
        """Lets go of the blocks of stores, and ends the pins of directives, if these alone keep vLLM's own cache from being
        emptied: between two steps no report comes.

        It waits until the stores have ended, at most drain_ms; those that have not ended by then, for example because the
        daemon does not answer, are given up, and it waits until they read no blocks any more.  It does nothing where it
        cannot see what a worker reads (see `opened`).
        """
        if self._restores_end:
            self._eventually(self._restores_have_ended, self._config.drain_ms / 1e3)
        stores = [number for number, job in self._jobs.items() if not job.load and job.pages]
        pinned = [] if self._device is None else self._device.pinned
        if not self._these_alone_hold_blocks(stores, pinned):
            return
        if pinned:
            self._device.end_pins()
        if not stores or None in self._fences:
            return
        wait_s = self._config.drain_ms / 1e3
        if not self._eventually(self._stores_have_ended, wait_s):
            for fence in self._fences:
                fence.void(self._stores_ordered)
            if not self._eventually(lambda: not any(fence.reads for fence in self._fences), READS_MOST_S):
                self._log.warning("%d blocks are still being read, so vLLM's prefix cache cannot be reset now", self._pinned)
                return
        for number in stores:
            self._unpin(self._jobs[number])

    def _these_alone_hold_blocks(self, stores, pinned):
        """pinned: pages that directives have pinned."""
        pins = collections.Counter(page for number in stores for page in self._jobs[number].pages)
        pins.update(pinned)
        held = sum(self._pool.blocks[page].ref_cnt == count for page, count in pins.items())
        return self._pool.get_num_free_blocks() + held == len(self._pool.blocks) - 1  # block 0 is never used

    @property
    def _restores_end(self):
        return self._restores is not None and self._restores.ending

    def _restores_have_ended(self):
        self._restores.take_news()
        return not self._restores.ending

    def _stores_have_ended(self):
        return all(fence.ended >= self._stores_ordered for fence in self._fences)

    def _eventually(self, true, seconds):
        """Waits for something, at most so long.  Returns whether it has happened."""
        until = self._clock() + seconds
        while not true():
            if self._clock() >= until:
                return False
            time.sleep(0.001)
        return True

    # ---- names of the blocks that vLLM has (device_blocks)

    @property
    def _reports_device(self):
        return self._config.report_device and self._facts.prefix_caching

    @property
    def _device_pins_max(self):
        """So few that vLLM can always run one request of the greatest length beside the stores under way."""
        facts = self._facts
        needed = -(-facts.longest_tokens // self._block) + 1 + int(self._config.store_pin_fraction * facts.blocks)
        return max(0, min(int(self._config.device_pin_fraction * facts.blocks), facts.blocks - 1 - needed))

    @property
    def device(self):
        """DeviceBlocks, or None."""
        return self._device

    def request_of(self, vllm):
        """Returns what is known of a request of vLLM, or None if its blocks have no names."""
        request = self._requests.get(vllm.request_id)
        return None if request is None or request.state == "passed" or request.stale or self._mixed else request

    def chain_of(self, request, blocks):
        """Returns the TokenChain of a request with so many blocks, None if it is not known yet, or False if it has none."""
        if request.chain is None and not self._name(request):
            return False if request.state == "passed" else None
        self._extend(request, blocks)
        return request.chain

    # ---- the rest

    def take_counts(self):
        if self._device is not None:
            self._collector.add("directives", self._device.take_count())
        return self._collector.take(self._cache.stats)

    def close(self):
        if self._device is not None:
            self._device.close()
        if self._restores is not None:
            self._restores.close()
        self._cache.close()
        self._contents.close()

    def check_invariants(self):
        """For tests."""
        if self._device is not None:
            self._device.check_invariants()
        loads = {job.request for job in self._jobs.values() if job.load and job.computed is None}
        by_layer = {job.request for job in self._jobs.values() if job.computed is not None}
        assert self._loading == len(loads) and len(by_layer) <= 1
        assert self._pinned == sum(len(job.pages) for job in self._jobs.values() if not job.load)
        for request in self._requests.values():
            assert (request.state == "loading") == (request in loads), request.state
            holds = request.state in ("asked", "found", "chosen", "loading", "restoring") or request in by_layer
            assert request.lookup == 0 or holds, request.state
            assert self._waiting(request) == 0 or request.due <= request.vllm.num_tokens // self._block
        held = [request.lookup for request in self._requests.values() if request.lookup]
        assert len(held) == len(set(held))

    @property
    def open(self):
        """Counts of what is held, for tests: requests, jobs, pinned blocks of stores, lookups."""
        return len(self._requests), len(self._jobs), self._pinned, self._cache.stats()["lookups_open"]

    def _name(self, request):
        """Names the blocks of the tokens that a request has.  Returns False if it is not known yet what they mean."""
        vllm = request.vllm
        if request.chain is None:
            lora = ""
            if vllm.lora_request is not None:
                if request.adapter is None:
                    request.adapter = self._contents.name_adapter(vllm.lora_request)
                if not request.adapter.done():
                    return False
                if (lora := request.adapter.result()) is None:
                    request.state = "passed"
                    self._collector.add("requests_passed")
                    return False
            content = self._contents.of(vllm.cache_salt, lora)
            seed = self._cache.seed(content)
            if seed is None:
                return False
            request.content = content
            request.chain = kvlarder.TokenChain(seed, block_tokens=self._block)
        self._extend(request, vllm.num_tokens // self._block)
        return True

    def _keep_promises(self):
        """Extends the promises of loads under way, which vLLM does not ask for again."""
        for job in self._jobs.values():
            if job.load:
                self._cache.poll_lookup(job.request.lookup)
        for request_id in () if self._restores is None else self._restores.under_way:
            self._cache.poll_lookup(self._requests[request_id].lookup)

    def _ask(self, request, first=0):
        """Begins the lookup of a request.  Returns False if that is not possible yet.  first: a block, from which on it asks
        with lazy stores, because what vLLM has then need not be stored."""
        if not self._name(request):
            return False
        if self._config.load and (request.vllm.num_tokens - 1) // self._block > 0:
            request.asked_from = 0 if self._lazy is None else first * self._block
            request.lookup = self._cache.begin_lookup(request.chain, request.asked_from)
            self._asking += 1
            request.state = "asked"
        return request.lookup != 0

    def _extend(self, request, blocks):
        known, end = request.chain.tokens_known, blocks * self._block
        if end > known:
            request.chain.extend(known, request.vllm.all_token_ids[known:end])

    def _not_yet(self, request, now):
        if now - request.asked_at < self._config.patience_ms / 1e3 and not self._cache.state:
            return None, False
        self._end_lookup(request)
        request.state = "missed"
        return 0, False

    def _answer(self, request, found, now):
        request.found_blocks = found.tokens // self._block
        if request.state == "asked":
            self._collector.observe("lookup_seconds", now - request.asked_at)
        if found.tokens == 0:
            self._end_lookup(request)
            request.state = "missed"
        else:
            request.state = "found"

    def _end_lookup(self, request):
        if request.lookup:
            self._cache.end_lookup(request.lookup)
            request.lookup = 0
            self._asking -= 1

    def _begin_again(self, request):
        """A preempted request asks again, with the tokens that it has by now."""
        self._drop_due(request)
        request.state, request.asked_at, request.found_blocks, request.saved = "asked", None, None, None
        if request.stale:  # vLLM computes every block again, so the connector may store them under the new generation
            request.content = request.chain = request.adapter = None
            request.stale = False

    def _begin_restore(self, request, computed, block_ids_of):
        """computed: tokens, with those of this step."""
        have, until = computed // self._block, request.until_block
        name = request.vllm.request_id
        found = self._cache.poll_lookup(request.lookup)
        pages = list(block_ids_of(name)[:until])
        if have < until == len(pages) and found is not None and found.tokens >= until * self._block:
            tiers = self._tiers(request, until)
            if self._restores.begin(name, request.chain.digests(0, until), pages, tiers, have, found.promise):
                request.state, request.saved = "restoring", until
                return
        self._end_lookup(request)
        request.state = "running"

    def _end_restore(self, request, freed=False):
        """freed: vLLM frees its blocks, which stay pinned for as long as a worker writes to them."""
        if request.state == "restoring":
            free = self._restores.end(request.vllm.request_id)
            self._end_lookup(request)
            request.state = "running" if free or freed else "ending"
            if request.state == "ending":
                self._ending.append(request)
        elif request.state == "chosen":
            request.state = "found"

    def _is_restored(self, request, first, last):
        """Returns whether blocks of a request are to be computed and loaded at once.  Not with adapters: vLLM counts on it
        that a running request takes part in each step."""
        if request.vllm.lora_request is not None or request.tries >= TRIES_MAX:
            return False
        return self._restores.pays(self._tiers(request, last), first)

    def _tiers(self, request, last):
        """Returns where each block of what was found is stored; blocks that were not asked for are vLLM's."""
        first = request.asked_from // self._block
        return bytes([HOST]) * first + self._cache.lookup_tiers(request.lookup)[first:last]

    def _measure(self, job, ended):
        """A load of blocks that lay in one tier tells how fast that is."""
        if not job.load or ended.good < ended.blocks:
            return
        host, disk = job.request.sources
        if self._layers is not None and disk == 0:
            self._layers.observe(ended.blocks * self._hellos[0].block_bytes, ended.seconds)
        if self._restores is None:
            return
        if (host == 0) != (disk == 0):
            tier = kvlarder.Tier.DISK if disk else kvlarder.Tier.HOST
            self._restores.observe_load(ended.rank, tier, ended.blocks * self._hellos[0].block_bytes, ended.seconds)

    def _plan(self, job):
        self._last_job += 1
        self._jobs[self._last_job] = job
        self._pool.touch([self._pool.blocks[page] for page in job.pages])
        return self._last_job

    def _unpin(self, job):
        pages, job.pages = job.pages, []
        if not job.load:
            self._pinned -= len(pages)
        if job.step is not None:
            with self._blocks_lock:
                self._lazy.release(list(reversed(pages)))
        else:
            self._pool.free_blocks(self._pool.blocks[page] for page in reversed(pages))

    def _end_job(self, number):
        job = self._jobs.pop(number)
        self._unpin(job)
        if not job.load:
            if job.step is not None:
                self._lazy.ended(job.step)
            return
        request = job.request
        if job.computed is not None:
            self._end_lookup(request)
            if job.good < job.blocks:
                self._take_back(job)
            return
        self._loading -= 1
        self._end_lookup(request)
        if request.state == "loading":
            request.state = "running" if job.good == job.blocks else "failed"
            request.load = 0

    def _plan_store(self, request, done, tokens, resumed, block_ids_of):
        vllm = request.vllm
        if request.chain is None and not self._name(request):
            return
        if request.saved is None or resumed:
            self._drop_due(request)
            request.saved = done // self._block
            if self._config.heal and request.found_blocks is not None and self._lazy is None:
                request.saved = min(request.saved, request.found_blocks)
        known = vllm.num_tokens if self._config.store_decode else vllm.num_prompt_tokens
        last = min(done + tokens, known, kvlarder.LOOKUP_TOKENS_MAX) // self._block
        first, request.due, store = request.saved, last, self._store_later
        if self._lazy is None:
            last, store = min(last, first + self._store_room), self._store_now
        if last <= first:
            return
        request.saved = last
        self._extend(request, last)
        store(request, first, last, block_ids_of(vllm.request_id))

    @staticmethod
    def _waiting(request):
        """Returns how many computed blocks of a request wait for room among the stores under way."""
        return 0 if request.saved is None else max(0, request.due - request.saved)

    def _drop_due(self, request):
        """vLLM frees the blocks of a request, and those that wait are not stored."""
        self._collector.add("blocks_dropped", self._waiting(request))
        request.due = 0

    def _store_now(self, request, first, last, pages):
        for begin in range(first, last, self._store_most):
            end, chain = min(begin + self._store_most, last), request.chain
            self._order_store(
                request.content, chain.parent(begin), chain.digests(begin, end), chain.tokens(begin, end), pages[begin:end]
            )

    def _store_later(self, request, first, last, pages):
        for block in range(first, last):
            entry = lazy_stores.Entry(
                request.content, request.chain.parent(block), request.chain.digests(block, block + 1),
                request.chain.tokens(block, block + 1),
            )  # fmt: skip
            self._lazy.keep(pages[block], entry)

    def _order_due(self):
        with self._blocks_lock:
            for run in self._lazy.due(self._store_room):
                parent = run.parent
                for begin in range(0, len(run.pages), self._store_most):
                    end = min(begin + self._store_most, len(run.pages))
                    digests = run.digests[16 * begin : 16 * end]
                    tokens = run.tokens[4 * self._block * begin : 4 * self._block * end]
                    self._order_store(run.content, parent, digests, tokens, run.pages[begin:end], self._lazy.step)
                    parent = digests[-16:]

    @property
    def _store_room(self):
        """How many more blocks may be stored at once: so many as stores may pin, and as a worker's queue has room for."""
        most = min(max(1, int(self._config.store_pin_fraction * self._facts.blocks)), self._config.store_queue_blocks)
        return max(0, most - self._pinned)

    @property
    def _store_most(self):
        """Blocks of one job: more than the queue has would be dropped whole."""
        return min(STORE_BLOCKS_MAX, self._config.store_queue_blocks)

    def _order_store(self, content, parent, digests, tokens, pages, step=None):
        job = self._plan(Job(False, None, pages, self._writers, self._clock(), step))
        self._pinned += len(pages)
        self._stores_ordered += 1
        self._step.stores.append(
            metadata.Store(
                job=job,
                content=(content.model, content.revision, content.salt, content.lora),
                parent=parent,
                digests=digests,
                tokens=tokens,
                pages=array.array("I", pages).tobytes(),
                deadline_s=self._config.store_timeout_ms / 1e3,
                order=self._stores_ordered,
            )
        )

    def _say_state(self):
        state = self._cache.state
        if state != self._state:
            self._state = state
            if state:
                self._log.warning("Larder is not used now, requests are computed: %s", state)
            else:
                self._log.info("Larder is used; engine %s", self._facts.engine_id)


def _keeps_step(vllm):
    """Returns whether a request's answer would change if vLLM discarded one of its steps and computed it again: that uses up
    a draw of a seeded generator, and loses the logprobs of the prompt."""
    sampling = getattr(vllm, "sampling_params", None)
    return sampling is not None and (sampling.prompt_logprobs is not None or sampling.seed is not None)


def _passes(vllm):
    """Returns whether tokens alone do not say what a request computes."""
    return (
        bool(vllm.mm_features)
        or vllm.prompt_embeds is not None
        or vllm.pooling_params is not None
        or vllm.resumable  # its tokens may change
    )

