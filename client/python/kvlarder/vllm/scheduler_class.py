"""LarderScheduler, vLLM's own scheduler for --scheduler-cls: it restores long prefixes sooner than loading alone would.

vLLM computes the head of such a prefix in its own steps while workers load its tail, until both meet.  Where blocks that
come next were loaded, and at the end of the prefix, num_computed_tokens jumps over them.  SchedulerSide decides; this
class makes vLLM compute what was granted, and hold the blocks of the whole prefix.  It schedules other requests as vLLM
does.
"""

import collections
import inspect
import time

from kvlarder.vllm import api, versions
from kvlarder.vllm.connector import LarderConnector
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler

# Methods of vLLM that are overridden, wrapped or called, with their first parameters.  _reserve_prefill_lookahead is the
# last that changes how many tokens a step computes of a request.
EXPECTED = {
    Scheduler: {
        "schedule": ("throttle_prefills",),
        "update_from_output": ("scheduler_output", "model_runner_output"),
        "_reserve_prefill_lookahead": ("request", "num_computed_tokens", "num_new_tokens"),
        "_preempt_request": ("request", "timestamp", "drop_stale_output"),
    },
    KVCacheManager: {
        "allocate_slots": (
            "request", "num_new_tokens", "num_new_computed_tokens", "new_computed_blocks", "num_lookahead_tokens",
        ),
        "cache_blocks": ("request", "num_computed_tokens"),
    },
}  # fmt: skip


def _check():
    for base, methods in EXPECTED.items():
        for name, parameters in methods.items():
            method = getattr(base, name, None)
            found = () if method is None else tuple(inspect.signature(method).parameters)[1 : len(parameters) + 1]
            if found != parameters:
                raise ImportError(
                    f"kvlarder.vllm.LarderScheduler does not fit vLLM {api.vllm.__version__}: {base.__name__}.{name} takes "
                    f"{found}, not {parameters}. It was tested with {versions.described()}; start vLLM without --scheduler-cls"
                )


_check()


class LarderScheduler:
    """Makes itself a subclass of the scheduler that vLLM would have used, asynchronous or not.

    Raises ValueError if vLLM has no LarderConnector.
    """

    def __new__(cls, vllm_config, *args, **kwargs):
        chosen = Asynchronous if vllm_config.scheduler_config.async_scheduling else Synchronous
        return object.__new__(chosen if cls is LarderScheduler else cls)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if not isinstance(self.connector, LarderConnector):
            raise ValueError(
                "--scheduler-cls kvlarder.vllm.LarderScheduler needs --kv-transfer-config with LarderConnector "
                "(docs/engines/vllm.md)"
            )
        self._side = None  # SchedulerSide, once it restores
        self._looked = False  # for _side
        limit = self.scheduler_config.long_prefill_token_threshold  # where another request runs or waits
        self._chunk = min(self.max_num_scheduled_tokens, limit) if limit > 0 else self.max_num_scheduled_tokens
        self._steps = collections.deque()  # that vLLM computes: (when scheduled, ranges of prompts, decoded tokens)
        self._step_ended = 0.0
        allocate = self.kv_cache_manager.allocate_slots

        def allocate_slots(request, num_new_tokens, **more):
            if self._side is not None and (held := self._side.held_tokens(request)):
                done = request.num_computed_tokens + more.get("num_new_computed_tokens", 0) + num_new_tokens
                more["num_lookahead_tokens"] = max(more.get("num_lookahead_tokens", 0), held - done)
            return allocate(request, num_new_tokens, **more)

        self.kv_cache_manager.allocate_slots = allocate_slots

    def schedule(self, throttle_prefills=False):
        side = self._restoring_side()
        if side is None:
            return super().schedule(throttle_prefills)
        for request, tokens in side.begin_step(*self._room()):
            if request.num_computed_tokens < tokens:
                request.num_computed_tokens = tokens
                self.kv_cache_manager.cache_blocks(request, tokens)
        output = super().schedule(throttle_prefills)
        side.step_scheduled(output.num_scheduled_tokens)
        self._note_step(output.num_scheduled_tokens)
        return output

    def update_from_output(self, scheduler_output, model_runner_output):
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self._steps:
            begun, ranges, decoded = self._steps.popleft()
            now = time.monotonic()
            self._side.step_ended(ranges, decoded, now - max(begun, self._step_ended))
            self._step_ended = now
        return outputs

    def _reserve_prefill_lookahead(self, request, num_computed_tokens, num_new_tokens):
        tokens = super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
        return tokens if self._side is None else self._side.tokens_of_step(request, num_computed_tokens, tokens)

    def _preempt_request(self, request, timestamp, drop_stale_output=False):
        if self._side is not None:
            self._side.preempted(request)
        super()._preempt_request(request, timestamp, drop_stale_output)

    def _room(self):
        """Returns (tokens of the next step, those of them that are decoded), less prompts that come before restores."""
        if self.pause_state == PauseState.PAUSED_ALL:
            return 0, 0
        decodes, prompts, ahead = 0, 0, 0
        for request in self.running:
            if self._side.is_restoring(request):
                ahead = prompts
            elif request.is_prefill_chunk:
                prompts += min(request.num_tokens - request.num_computed_tokens, self._chunk)
            else:
                decodes += 1
        return max(self.max_num_scheduled_tokens - ahead, 0), decodes

    def _note_step(self, scheduled):
        """After vLLM has counted the tokens of this step as computed."""
        ranges, decoded = [], 0
        for name, tokens in scheduled.items():
            end = self.requests[name].num_computed_tokens
            if tokens == 1:
                decoded += 1
            else:
                ranges.append((end - tokens, end))
        self._steps.append((time.monotonic(), ranges, decoded))

    def _restoring_side(self):
        if not self._looked and (side := self.connector.scheduler_side) is not None:
            self._looked = True
            if why := self._why_not() or side.enable_restores(self._chunk):
                api.logger.warning("Prefixes are loaded, but not computed and loaded at once: %s", why)
            else:
                self._side = side
        return self._side

    def _why_not(self):
        if self.use_v2_model_runner:
            return "the V2 model runner keeps its own count of computed tokens; set VLLM_USE_V2_MODEL_RUNNER=0"
        if self.needs_kv_cache_zeroing:
            return "the worker clears new blocks"
        if self.num_lookahead_tokens > 0 or self.num_prefill_lookahead > 1:
            return "speculative decoding looks ahead"
        if not self.scheduler_config.enable_chunked_prefill:
            return "chunked prefill is off"
        if self.vllm_config.max_concurrent_batches > 1 and not self.defer_block_free:
            return "blocks are freed while a step may still write them"
        return ""


class Synchronous(LarderScheduler, Scheduler):
    pass


class Asynchronous(LarderScheduler, AsyncScheduler):
    pass
