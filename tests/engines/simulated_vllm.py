"""vLLM's scheduler, workers and block pool as far as a KV connector sees them, with KV that can be checked.

The rules are those of vLLM 0.32 (v1/core/sched/scheduler.py, v1/core/block_pool.py,
v1/worker/kv_connector_model_runner_mixin.py), with its assertions.  It is hostile where vLLM may be: a freed block is
reused and overwritten in the same step, requests are preempted, aborted and asked about at any time, and the workers
report in different steps.

The "KV" of a block is a function of all tokens up to its end, the layer, the rank and the weights, so that a page shows
whether it is right: right_page.  A request that goes on from a wrong page raises WrongBytes.
"""

import contextlib
import hashlib
import random
import time
import types

import numpy

from kvlarder.vllm import engine_facts, names, pages, scheduler, stats, worker

BLOCK = 16
PAGE_BYTES = 512
LAYERS = 2
LONGEST = 20 * BLOCK


class WrongBytes(AssertionError):
    pass


def right_page(prefix, layer, shard, weights):
    """Returns the bytes of the block that ends a prefix of tokens."""
    seed = hashlib.sha256(repr((tuple(prefix), layer, shard, weights)).encode()).digest()
    return numpy.frombuffer(seed * (PAGE_BYTES // 32), dtype=numpy.uint8)


class Block:
    def __init__(self, number):
        self.block_id, self.ref_cnt, self.is_null = number, 0, number == 0
        self.block_hash = None  # what it holds for others: the prefix that it ends (Engine._prefix)


class FreeQueue(list):
    """Free blocks, those first that are reused first, with the face of vLLM's linked queue."""

    @property
    def fake_free_list_head(self):
        head = types.SimpleNamespace(next_free_block=None)
        for block, after in zip([head, *self], [*self, None]):
            block.next_free_block = after
        return head

    def prepend_n(self, blocks):
        self[:0] = blocks


class BlockPool:
    """As vLLM's: it never hands out block 0, and reuses blocks whose ref_cnt is 0, the oldest first.  Several blocks may hold
    the same."""

    def __init__(self, blocks, prefix_of):
        """prefix_of(request, index): what a block of a request holds."""
        self.blocks, self._prefix_of = [Block(number) for number in range(blocks)], prefix_of
        self.free = self.free_block_queue = FreeQueue(self.blocks[1:])
        self.cached = {}  # blocks by what they hold

    def get_num_free_blocks(self):
        return len(self.free)

    def touch(self, blocks):
        for block in blocks:
            if block.ref_cnt == 0:
                self.free.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, blocks):
        for block in list(blocks):
            assert block.ref_cnt > 0, "freed twice"
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.free.insert(0 if block.block_hash is None else len(self.free), block)

    def get_new_blocks(self, count):
        assert count <= len(self.free)
        taken = self.free[:count]
        del self.free[:count]
        for block in taken:
            self._forget(block)
            block.ref_cnt = 1
        return taken

    def cache_full_blocks(self, request, blocks, num_cached_blocks, num_full_blocks):
        for index in range(num_cached_blocks, num_full_blocks):
            if blocks[index].block_hash is None:
                prefix = self._prefix_of(request, index)
                blocks[index].block_hash = prefix
                self.cached.setdefault(prefix, []).append(blocks[index])

    def evict_blocks(self, block_ids):
        for number in block_ids:
            self._forget(self.blocks[number])

    def reset_prefix_cache(self):
        if len(self.free) != len(self.blocks) - 1:
            return False
        for block in self.blocks:
            self._forget(block)
        return True

    def _forget(self, block):
        if block.block_hash is None:
            return
        self.cached[block.block_hash].remove(block)
        if not self.cached[block.block_hash]:
            del self.cached[block.block_hash]
        block.block_hash = None


class Lora:
    def __init__(self, number, name, path):
        self.lora_int_id, self.lora_name, self.lora_path, self.load_inplace = number, name, path, False


class Request:
    """What the connector reads of vLLM's Request, and what the simulated scheduler needs."""

    def __init__(self, name, tokens, answer, cache_salt=None, lora_request=None):
        self.request_id, self.cache_salt, self.lora_request = name, cache_salt, lora_request
        self.all_token_ids, self.num_prompt_tokens, self.answer = list(tokens), len(tokens), answer
        self.mm_features, self.prompt_embeds, self.pooling_params = [], None, None
        self.skip_reading_prefix_cache = self.resumable = False
        self.blocks, self.computed, self.status = [], 0, "waiting"
        self.cached = 0  # blocks that were told to the BlockPool
        self.loaded_tokens = self.preemptions = self.local_tokens = 0
        self.began_step = None

    @property
    def num_tokens(self):
        return len(self.all_token_ids)

    @property
    def num_computed_tokens(self):
        return self.computed

    @num_computed_tokens.setter
    def num_computed_tokens(self, tokens):
        self.computed = tokens

    @property
    def done(self):
        return self.num_tokens >= self.num_prompt_tokens + self.answer


class Tensor:
    """A numpy array with the face of a torch tensor."""

    def __init__(self, array, device="cpu"):
        self._array, self.shape = array, array.shape
        self.device = types.SimpleNamespace(type=device)

    def stride(self):
        return tuple(stride // self._array.itemsize for stride in self._array.strides)

    def data_ptr(self):
        return self._array.ctypes.data

    def element_size(self):
        return self._array.itemsize

    def is_contiguous(self):
        return self._array.flags.c_contiguous

    def __getitem__(self, index):
        return Tensor(self._array[index])


class Log:
    def __init__(self):
        self.lines = []

    def info(self, text, *values):
        self.lines.append(text % values)

    warning = info


class Rank:
    """A worker process: the pages of its part of the KV, and the connector's worker side."""

    def __init__(self, config, facts, rank, clock, isa, log, restores):
        self.rank, self.shard = rank, facts.shard_of(rank)
        self.kv = [numpy.zeros((facts.blocks, PAGE_BYTES), numpy.uint8) for _ in range(LAYERS)]
        self.counts = stats.Collector(0.0, clock)
        described = pages.describe(
            {f"model.layers.{layer}.attn": Tensor(kv) for layer, kv in enumerate(self.kv)}, facts, "cpu", "0.32", isa
        )
        self.side = worker.WorkerSide(config, facts, rank, described, self.counts, log, restores)
        self.held = []  # outputs of steps that the scheduler has not seen yet

    def write(self, block, prefix, layer, weights):
        self.kv[layer][block] = right_page(prefix, layer, self.shard, weights)

    def has(self, block, prefix, layer, weights):
        return numpy.array_equal(self.kv[layer][block], right_page(prefix, layer, self.shard, weights))

    def is_right(self, block, prefix, weights):
        return all(self.has(block, prefix, layer, weights) for layer in range(LAYERS))


class StoresToldNextStep:
    """A kvlarder.EngineCache whose poll returns a store's result in a later step than the one that begins the store, however
    soon the store has ended."""

    def __init__(self, cache):
        self._cache, self._begun, self._kept = cache, set(), []

    def __getattr__(self, name):
        return getattr(self._cache, name)

    def begin_store(self, **store):
        job = self._cache.begin_store(**store)
        self._begun.add(job)
        return job

    def poll(self):
        """The worker calls this once in a step, after it has begun the step's stores."""
        ended, begun = [*self._kept, *self._cache.poll()], self._begun
        self._kept, self._begun = [result for result in ended if result.job in begun], set()
        return [result for result in ended if result.job not in begun]


def facts(blocks=64, ranks=1, shards=1, engine_id="engine", block_tokens=BLOCK, dtype="bf16", prefix_caching=True):
    return engine_facts.EngineFacts(
        block_tokens=block_tokens, blocks=blocks, dtype=dtype, ranks=ranks, shards=shards,
        engine_id=engine_id, model="m", longest_tokens=LONGEST, prefix_caching=prefix_caching,
    )  # fmt: skip


class Engine:
    """One engine: a scheduler and its workers, stepped by the caller."""

    def __init__(self, config, *, blocks=64, ranks=1, shards=1, running_max=4, chunk=64, engine_id="engine", local=True,
                 late_reports=0.0, seed=0, clock=None, isa="vec", dtype="bf16", restores=None, layers=False, step_s=0.0,
                 long_steps=False):  # fmt: skip
        """restores: a kvlarder.Profile, with which the scheduler restores as LarderScheduler does; layers: prefixes may be loaded
        layer by layer, which needs one rank and reports that are not late; step_s: how long the
        model takes for a step at least; long_steps: a step takes as long as the stores that it orders."""
        self.clock = clock or time.monotonic
        self.config, self.facts = config, facts(
            blocks, ranks, shards, engine_id, dtype=dtype, prefix_caching=local
        )
        self.random = random.Random(seed)
        self.log = Log()
        self.pool, self.local = BlockPool(blocks, self._prefix), local
        self.ranks = [
            Rank(config, self.facts, rank, self.clock, isa, self.log, restores is not None) for rank in range(ranks)
        ]
        self.counts = stats.Collector(0.0, self.clock)
        self.contents = names.ContentNames(self.facts.model, "r2:0")
        self.side = scheduler.SchedulerSide(
            config, self.facts, self.contents, [rank.side.hello() for rank in self.ranks], self.counts, self.log,
            self.clock,
        )  # fmt: skip
        self.side.bind_block_pool(self.pool)
        # What one call of vLLM's KVCacheManager does: it looks at blocks, and then takes them.
        self.manager_call = self.side.device.lock if self.side.device is not None else contextlib.nullcontext()
        if restores is not None:
            assert self.side.enable_restores(chunk, restores) == ""
        self.layers = layers
        self.mid_step = lambda: None  # called when a step was computed and the scheduler has yet to learn of it
        if layers:
            assert ranks == 1 and not late_reports
            self.side.enable_layers(chunk)
        self.step_s, self.long_steps = step_s, long_steps
        if long_steps:  # the scheduler learns in the next step, neither sooner nor later, that the stores have ended
            assert ranks == 1 and not late_reports
            self.ranks[0].side._cache = StoresToldNextStep(self.ranks[0].side._cache)
        self.running_max, self.chunk, self.late_reports = running_max, chunk, late_reports
        self.waiting, self.running, self.requests = [], [], {}
        self.resumed = set()
        self.recv_left, self.received, self.failed = {}, set(), set()
        self.weights = 0
        self.was_emptied = False
        self.steps = self.loaded = self.recomputed = self.preempted = self.restored = 0
        self.by_layer = self.taken_back = 0  # loads; requests of steps whose load failed
        self.stalled = 0  # allocations that failed while stores held blocks
        self.hits = 0  # tokens that vLLM's own cache had
        self.call_times = []

    # ---- what a user does

    def add(self, request):
        self.requests[request.request_id] = request
        self.waiting.append(request)
        request.began_step = self.steps
        self.side.on_new_request(request)
        return request

    def abort(self, name):
        """As Scheduler.finish_requests."""
        request = self.requests.get(name)
        if request is None or request.status == "finished":
            return
        late = request.status == "loading" and name not in self.received
        self.received.discard(name)
        self.failed.discard(name)
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)
        self._finish(request, late)

    def reset_prefix_cache(self, running=True, connector=True):
        if running:
            for request in list(reversed(self.running)):
                self._preempt(request)
        self.was_emptied = self.side.empty(self.pool.reset_prefix_cache)
        if running and not self.was_emptied and not any(request.blocks for request in self.requests.values()):
            raise RuntimeError("Failed to reset KV cache even when all the running requests are preempted")
        if connector:
            self.side.reset(clean=self.was_emptied)
            self.weights += self.was_emptied  # as after an update of the weights
        return self.was_emptied

    @property
    def serves(self):
        return not self.side._cache.state and not any(rank.side._cache.state for rank in self.ranks)

    # ---- a step

    @property
    def busy(self):
        return bool(self.waiting or self.running or self.requests) or self.side.has_work or any(r.held for r in self.ranks)

    def step(self):
        self.steps += 1
        if self.side.restores is not None:
            decodes = sum(request.computed >= request.num_tokens - 1 for request in self.running)
            for request, tokens in self.side.begin_step(self.chunk, decodes):
                self._here(request, tokens)
        scheduled, begun = self._schedule(), self.clock()
        if self.side.restores is not None:
            self.side.step_scheduled(scheduled)
        resumed, self.resumed = self.resumed & scheduled.keys(), set()
        plan = self.side.build_step(
            {name: (self.requests[name].computed, tokens) for name, tokens in scheduled.items()},
            resumed,
            lambda name: [block.block_id for block in self.requests[name].blocks],
        )
        for request, tokens in [(self.requests[name], tokens) for name, tokens in scheduled.items()]:
            request.computed += tokens
        wrong = set()
        for rank in self.ranks:
            wrong |= self._run(rank, plan, scheduled)
        if wrong and not any(load.by_layer for load in plan.loads):
            raise WrongBytes(f"{sorted(wrong)} went on from wrong blocks")
        self.wrong = wrong
        if scheduled and self.step_s:
            time.sleep(self.step_s)
        if self.long_steps:
            assert self.side._eventually(self.side._stores_have_ended, 60), "stores that never end"
        if self.side.restores is not None:
            prompts = [(self.requests[name].computed - tokens, self.requests[name].computed)
                       for name, tokens in scheduled.items() if tokens > 1]  # fmt: skip
            self.side.step_ended(prompts, len(scheduled) - len(prompts), self.clock() - begun)
        self.mid_step()
        self._update(scheduled)
        self.side.check_invariants()

    def _blocks_for(self, request, tokens):
        needed = -(-tokens // BLOCK) - len(request.blocks)
        if needed <= 0:
            return True
        with self.manager_call:
            new = self.pool.get_new_blocks(needed) if needed <= self.pool.get_num_free_blocks() else None
        if new is None:
            self.stalled += self.side.frees_blocks_soon
            return False
        request.blocks += new
        for block in new:  # whoever still moves such a block moves garbage
            for rank in self.ranks:
                for kv in rank.kv:
                    kv[block.block_id] = 0xEE
        return True

    def _schedule(self):
        scheduled, budget = {}, self.chunk
        for request in list(self.running):
            if budget == 0 or request not in self.running:
                continue
            tokens = min(request.num_tokens - request.computed, budget)
            if self.side.restores is not None:
                tokens = self.side.tokens_of_step(request, request.computed, tokens)
            while tokens and not self._blocks_for(request, request.computed + tokens):
                victim = self.running[-1]
                scheduled.pop(victim.request_id, None)
                self._preempt(victim)
                if victim is request:
                    break
            if request in self.running and tokens:
                scheduled[request.request_id] = tokens
                budget -= tokens
                if self.layers:
                    self._cache(request, request.computed + tokens)
        for request in list(self.waiting):
            if len(self.running) >= self.running_max or budget == 0:
                break
            if not self._admit(request, budget, scheduled):
                continue
            budget -= scheduled.get(request.request_id, 0)
        return scheduled

    def _admit(self, request, budget, scheduled):
        name = request.request_id
        if request.status == "loading":
            if name not in self.received:
                return False
            self.received.discard(name)
            if name in self.failed and request.computed == 0:
                # As Scheduler._update_waiting_for_remote_kv does: no block has the right KV, and the request is admitted anew.
                self.pool.free_blocks(reversed(request.blocks))
                request.blocks = []
            self.failed.discard(name)
            request.status = "waiting"
            self._check_loaded(request)
        hit, tokens_hit, external = [], request.computed, 0
        if request.computed == 0:
            with self.manager_call:
                if self.local:
                    while len(hit) < (request.num_tokens - 1) // BLOCK:
                        blocks = self.pool.cached.get(self._prefix(request, len(hit)))
                        if blocks is None:
                            break
                        hit.append(blocks[0])
            tokens_hit = len(hit) * BLOCK
            request.local_tokens = tokens_hit
            external, asynchronous = self._ask(request, tokens_hit)
            if external is None:
                return False
            assert external >= 0 and external % BLOCK == 0 and (external > 0 or not asynchronous)
            assert tokens_hit + external < request.num_tokens
        later = external > 0 and asynchronous
        new, held = 0 if later else min(request.num_tokens - tokens_hit - external, budget), 0
        if self.side.restores is not None and new:
            new = self.side.tokens_of_step(request, tokens_hit + external, new)
            held = self.side.held_tokens(request)
            if new == 0:
                return False
        with self.manager_call:
            # The whole request must fit; a load also leaves room for those that hold blocks and cannot be preempted.
            needed = self._remaining(request) - len(hit)
            if later:
                needed += sum(self._remaining(other) for other in self.requests.values() if self._in_flight(other))
            if needed > len([block for block in self.pool.free if block not in hit]):
                self.stalled += self.side.frees_blocks_soon
                return False
            if request.computed == 0:
                assert not request.blocks
                self.pool.touch(hit)
                request.blocks = list(hit)
            assert self._blocks_for(request, max(tokens_hit + external + new, held))
        self.side.allocated(request, [block.block_id for block in request.blocks], external)
        request.computed = tokens_hit + external
        if external:
            host, disk = self.side.hit_sources(request)
            assert host + disk == external
            request.loaded_tokens = external
        if later:
            request.status = "loading"
            return False
        self.by_layer += external > 0
        if self.layers:
            self._cache(request, request.computed + new)
        self.waiting.remove(request)
        self.running.append(request)
        request.status = "running"
        self.hits += request.local_tokens
        if not self.layers:  # otherwise the blocks may be computed or loaded in this step, whose forward checks them
            for index in range(request.computed // BLOCK):
                self._check_page(request, index)
        if request.preemptions:
            self.resumed.add(name)
        scheduled[name] = new
        return True

    @staticmethod
    def _remaining(request):
        return -(-request.num_tokens // BLOCK) - len(request.blocks)

    @staticmethod
    def _in_flight(request):
        return request.status == "loading" or request.status == "running" and request.computed < request.num_tokens - 1

    def _ask(self, request, computed):
        for _ in range(self.random.choice((1, 1, 3))):  # it is a pure question
            begun = self.clock()
            answer = self.side.matched_tokens(request, computed)
            self.call_times.append(self.clock() - begun)
        return answer

    def _prefix(self, request, index):
        return (request.cache_salt, self.weights, *request.all_token_ids[: (index + 1) * BLOCK])

    def _check_page(self, request, index):
        prefix = self._prefix(request, index)
        for rank in self.ranks:
            if not rank.is_right(request.blocks[index].block_id, prefix, self.weights):
                raise WrongBytes(f"{request.request_id}: block {index} of rank with shard {rank.shard}")

    def _here(self, request, tokens):
        """As LarderScheduler.schedule: this many tokens of a request are in its blocks."""
        assert request in self.running and request.computed % BLOCK == 0 and request.computed <= tokens < request.num_tokens
        self.restored += tokens - request.computed
        request.computed = tokens
        self._check_loaded(request)

    def _check_loaded(self, request):
        for index in range(request.computed // BLOCK):
            self._check_page(request, index)
        self._cache(request)
        self.loaded += request.loaded_tokens

    def _cache(self, request, tokens=None):
        """Others find the blocks of the first tokens, by default of those that are computed; as vLLM, it tells of none again."""
        last = (request.computed if tokens is None else min(tokens, request.num_tokens)) // BLOCK
        if self.local and last > request.cached:
            self.pool.cache_full_blocks(request, request.blocks, request.cached, last)
            request.cached = last

    def _run(self, rank, plan, scheduled):
        """Worker: loads begin before the forward, stores after it.  KV that was computed from wrong KV is wrong.  Returns the
        requests that have computed from wrong KV, with an engine that loads by layer."""
        rank.side.begin_step(plan)
        wrong = set()
        for layer in range(LAYERS):
            rank.side.wait_for_layer(f"model.layers.{layer}.attn")
            for name, tokens in scheduled.items():
                request = self.requests[name]
                first = (request.computed - tokens) // BLOCK
                if self.layers and not all(
                    rank.has(request.blocks[index].block_id, self._prefix(request, index), layer, self.weights)
                    for index in range(first)
                ):
                    wrong.add(name)
                for index in range(first, request.computed // BLOCK):
                    block, prefix = request.blocks[index].block_id, self._prefix(request, index)
                    rank.write(block, prefix if name not in wrong else ("wrong", *prefix), layer, self.weights)
        rank.side.end_forward()
        loaded = rank.side.take_loaded()
        rank.held.append((loaded, rank.side.take_bad_pages(), rank.side.take_report()))
        return wrong

    def _update(self, scheduled):
        """As Scheduler.update_from_output and KVOutputAggregator, where one rank may lag behind."""
        bad, reports, finished = set(), [], set()
        for rank in self.ranks:
            while rank.held and not (self.late_reports and self.random.random() < self.late_reports):
                loaded, pages_, report = rank.held.pop(0)
                bad |= pages_
                reports += [report] if report is not None else []
                for name in loaded:
                    self.recv_left[name] = self.recv_left.get(name, len(self.ranks)) - 1
                    if self.recv_left[name] == 0:
                        del self.recv_left[name]
                        finished.add(name)
        for request in self.waiting:
            if request.status == "loading" and bad:
                for index in range(request.computed // BLOCK):
                    if request.blocks[index].block_id in bad:
                        self.recomputed += request.computed - index * BLOCK
                        request.computed = index * BLOCK
                        self.failed.add(request.request_id)
                        break
        taken_back = self._take_back(scheduled, bad)
        for name in scheduled:
            if (request := self.requests.get(name)) is None or name in taken_back:
                continue  # it was aborted meanwhile, or computes again
            if name in self.wrong:
                raise WrongBytes(f"{name} goes on although it has computed from wrong blocks")
            self._cache(request)
            if request.computed == request.num_tokens:
                request.all_token_ids.append(hash((tuple(request.all_token_ids[-3:]), "next")) % 1000)
                if request.done:
                    self.running.remove(request)
                    self._finish(request, late=False)
        if scheduled:
            self.side.step_computed()
        for report in reports[1:]:
            reports[0].aggregate(report)
        if reports:
            self.side.on_report(reports[0])
        for name in finished:
            request = self.requests[name]  # vLLM asserts this
            if request.status == "loading":
                self.received.add(name)
            else:
                assert request.status == "finished"
                self._free(request)

    def _take_back(self, scheduled, bad):
        """As Scheduler._update_requests_with_invalid_blocks for running requests.  Returns those that compute again."""
        taken_back, marked = set(), set()
        for request in self.running if bad else ():
            had = request.computed - scheduled.get(request.request_id, 0)
            for index in range(-(-had // BLOCK)):
                block = request.blocks[index].block_id
                if block not in bad:
                    continue
                if request.request_id not in taken_back:
                    request.computed = had if block in marked else index * BLOCK
                    taken_back.add(request.request_id)
                marked.add(block)
        self.taken_back += len(taken_back)
        return taken_back

    def _preempt(self, request):
        self.running.remove(request)
        self.side.preempted(request)
        self.pool.free_blocks(reversed(request.blocks))
        request.blocks, request.computed, request.status, request.cached = [], 0, "waiting", 0
        request.preemptions += 1
        self.preempted += 1
        self.waiting.insert(0, request)

    def _finish(self, request, late):
        request.status = "finished"
        self.side.finished(request)
        if not late:
            self._free(request)

    def _free(self, request):
        self.pool.free_blocks(reversed(request.blocks))
        request.blocks = []
        del self.requests[request.request_id]

    def totals(self):
        """Returns all counts of scheduler and workers together."""
        both = {}
        for counts in [(self.counts, self.side), *((rank.counts, rank.side) for rank in self.ranks)]:
            if (report := counts[1].take_counts()) is not None:
                both = stats.joined(both, report)
        return both

    def close(self):
        self.side.close()
        for rank in self.ranks:
            rank.side.close()
