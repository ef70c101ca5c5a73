#!/usr/bin/env python3
"""vLLM in a process of its own, ordered by lines of JSON: what the tests of the real engine start, kill and start again.

    with VllmChild(python, model, connector={...}) as vllm:
        answers = vllm.generate([{"tokens": [...], "n": 24, "salt": "a"}])

Run as a program it is that process, or one that forks such processes.  vLLM logs to standard output, so requests and answers
have descriptors of their own.
"""

import functools
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time

CHUNK = 256


class Forked:
    """A process that another one has forked: those parts of subprocess.Popen that VllmChild uses."""

    def __init__(self, pid):
        self.pid, self.returncode = pid, None
        self._ended = os.pidfd_open(pid)

    def wait(self, timeout=None):
        if self.returncode is not None:
            return
        if not select.select([self._ended], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("vLLM", timeout)
        self.returncode = 0  # or another one, which only its parent learns
        os.close(self._ended)


class Prepared:
    """A process that has imported vLLM, and forks processes that run it: the import takes most of the time of a start.

    It ends when the process that started it does.  It never waits for those that it has forked, so that a process id, by which
    VllmChild kills one, is not given to another process meanwhile.
    """

    def __init__(self, python):
        self._socket, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # whole messages
        subprocess.Popen(
            [python, os.path.abspath(__file__), "prepared", str(there.fileno())], env=environment(), stdin=subprocess.DEVNULL,
            pass_fds=[there.fileno()], start_new_session=True,
        )  # fmt: skip
        there.close()

    def fork(self, env, files):
        """Returns the Forked.  env: variables beyond those that this process had at its start; files: its descriptors of
        requests, answers and what vLLM logs."""
        socket.send_fds(self._socket, [json.dumps(env).encode()], files)
        if not (pid := self._socket.recv(32)):
            raise RuntimeError("the process that has imported vLLM has ended")
        return Forked(int(pid))

    @staticmethod
    def serve(there):
        """Runs in the process that has imported vLLM.  there: its end of the socket."""
        from vllm import LLM  # noqa: F401
        from vllm.model_executor.models import llama  # noqa: F401
        from vllm.v1.engine import core  # noqa: F401
        from vllm.v1.worker import cpu_worker  # noqa: F401

        import kvlarder.vllm  # noqa: F401

        while True:
            env, files, _, _ = socket.recv_fds(there, 1 << 20, 3)
            if not env:
                return
            if (pid := os.fork()) == 0:
                there.close()
                os.environ.update(json.loads(env))
                requests, answers, log = files
                for output in (1, 2):
                    os.dup2(log, output)
                os.close(log)
                answer_requests(requests, answers)
                return
            os.setpgid(pid, pid)  # before the one that asked can end the group
            for file in files:
                os.close(file)
            there.send(str(pid).encode())


prepared = functools.cache(Prepared)  # one for each Python, started when it is first needed


def environment(threads=1):
    """Returns the variables of a process that runs vLLM on the CPU and computes with so many threads."""
    return {
        **{name: value for name, value in os.environ.items() if name != "LARDER_SOCKET_DIR"},
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads),
        "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    }  # fmt: skip


class VllmChild:
    def __init__(self, python, model, connector=None, log=None, threads=1, env=None, ahead=False, **engine):
        """connector: the options of LarderConnector, or None for vLLM without Larder; env: more variables of the
        environment; ahead: the first call waits until vLLM has started, and this one at most until it is imported; engine:
        arguments of LLM."""
        here, there = os.pipe(), os.pipe()
        env = env or {}
        self.log_path = log or "/dev/null"
        with open(self.log_path, "ab") as file:
            # PyTorch, OpenMP and vLLM read most variables when they are loaded.
            if threads == 1 and env.keys() <= {"VLLM_ENABLE_V1_MULTIPROCESSING"}:
                self.process = prepared(python).fork(env, (there[0], here[1], file.fileno()))
            else:
                self.process = subprocess.Popen(
                    [python, os.path.abspath(__file__), str(there[0]), str(here[1])], env={**environment(threads), **env},
                    pass_fds=(there[0], here[1]), stdout=file, stderr=file, start_new_session=True,
                )  # fmt: skip
        os.close(there[0])
        os.close(here[1])
        self._in, self._out = os.fdopen(here[0], "r"), os.fdopen(there[1], "w")
        self._starts = True
        self._say("start", model=str(model), connector=connector, engine=engine)
        if not ahead:
            self._await_start()

    def _await_start(self):
        if self._starts:
            self._answer("start")
            self._starts = False

    def _call(self, verb, **arguments):
        self._await_start()
        self._say(verb, **arguments)
        return self._answer(verb)

    def _say(self, verb, **arguments):
        try:
            self._out.write(json.dumps({"verb": verb, **arguments}) + "\n")
            self._out.flush()
        except BrokenPipeError:
            pass  # there will be no answer

    def _answer(self, verb):
        if not (line := self._in.readline()):
            with open(self.log_path, errors="replace") as file:
                raise RuntimeError(f"vLLM ended in '{verb}':\n" + file.read()[-6000:])
        return json.loads(line)

    def tokens_of(self, text):
        return self._call("tokens", text=text)

    def generate(self, prompts):
        """One after the other.  Returns for each {tokens, logprob of the first, seconds to the first, cached, sources}."""
        return self._call("generate", prompts=prompts)

    def serve(self, prompts, clients, abort=0.0, reset=0.0, seed=0):
        """All of them, `clients` at once.  Returns {answers, first_s (seconds to the first token) and first_logprob by
        number, gaps_s by number (seconds between its later tokens), seconds, aborted, errors, resets, bad_resets, firsts: for
        each first token its time and how many tokens were cached}."""
        return self._call("serve", prompts=prompts, clients=clients, abort=abort, reset=reset, seed=seed)

    def metrics(self):
        """Returns {name{labels}: value} of vLLM's counters and gauges."""
        return self._call("metrics")

    def reset(self, running=False, connector=True):
        return self._call("reset", running=running, connector=connector)

    def memory(self):
        """Returns the resident bytes of the process and those that it started, without what they share with others: the
        pool, which a client maps as it uses it."""
        return self._call("memory")

    def restore_by(self, way):
        """With LarderScheduler and VLLM_ENABLE_V1_MULTIPROCESSING=0: from now on prefixes are 'computed', 'loaded', or
        'both' at once, whatever pays."""
        return self._call("restore_by", way=way)

    def load_by_layer(self, always):
        """With VLLM_ENABLE_V1_MULTIPROCESSING=0: from now on all loads of blocks in the pool go layer by layer, or none."""
        return self._call("load_by_layer", always=always)

    def lose_layers(self, from_layer):
        """With these: from now on loads by layer fail at a layer, after those before it have come; None: no more."""
        return self._call("lose_layers", from_layer=from_layer)

    def costs(self):
        """With these: returns what was learnt, {fixed_s, linear_s, quadratic_s, rates: bytes/s by channel}."""
        return self._call("costs")

    def watch_free_pages(self):
        """With these: from now on `serve` fills pages that no request and no job holds, and returns how many of them were written to
        ("written"), how many restores were under way when ("restoring": time and number of each change), and how many of
        them were aborted and preempted ("aborted_restores", "preempted_restores")."""
        return self._call("watch_free_pages")

    def in_its_cache(self, texts):
        """With VLLM_ENABLE_V1_MULTIPROCESSING=0: returns for each text, {tokens, salt}, its content (model, revision, salt in
        hexadecimal digits, adapter) and the numbers of its blocks that are in vLLM's own prefix cache, as vLLM's BlockPool says."""
        return self._call("in_its_cache", texts=texts)

    def long_steps(self):
        """With VLLM_ENABLE_V1_MULTIPROCESSING=0: from now on a step takes as long as the stores that it orders."""
        return self._call("long_steps")

    def version(self):
        return self._call("version")

    def kill(self):
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self._out.close()
            self._in.close()

    def close(self):
        self._await_start()
        self._out.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self._in.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class FreePages:
    """Finds writes to pages that no request and no job holds, in the child: they are filled with a number that no model writes, and lose
    it when vLLM allocates them.  Its own prefix cache must be off."""

    FILL = 12_345.0

    def __init__(self, core, restores):
        self.pool, self.restores = core.scheduler.kv_cache_manager.block_pool, restores
        self.caches = core.model_executor.driver_worker.worker.model_runner.kv_caches
        self.filled = set()
        allocate, preempt = self.pool.get_new_blocks, core.scheduler._preempt_request

        def get_new_blocks(count):
            blocks = allocate(count)
            taken = self.filled.intersection(block.block_id for block in blocks)
            self.counts["written"] += len(self.written_of(taken))
            self.filled -= taken
            return blocks

        def preempt_request(request, *more, **named):
            self.counts["preempted_restores"] += request.request_id in self.restores.under_way
            preempt(request, *more, **named)

        self.pool.get_new_blocks, core.scheduler._preempt_request = get_new_blocks, preempt_request

    def begin(self):
        self.counts = {"written": 0, "aborted_restores": 0, "preempted_restores": 0}
        self.restoring = [(time.time(), 0)]
        self.fill()

    def fill(self):
        for block in self.pool.blocks:
            if block.ref_cnt == 0 and not block.is_null and block.block_id not in self.filled:
                for cache in self.caches:
                    cache[block.block_id] = self.FILL
                self.filled.add(block.block_id)

    def written_of(self, pages):
        return {page for page in pages if any((cache[page] != self.FILL).any() for cache in self.caches)}

    def step_ended(self):
        written = self.written_of(self.filled)
        self.counts["written"] += len(written)
        self.filled -= written
        self.fill()
        if len(self.restores.under_way) != self.restoring[-1][1]:
            self.restoring.append((time.time(), len(self.restores.under_way)))

    def aborts(self, name):
        self.counts["aborted_restores"] += any(request.startswith(name) for request in self.restores.under_way)

    def result(self):
        return {**self.counts, "restoring": self.restoring}


class Engine:
    """In the child."""

    def __init__(self, model, connector, engine):
        from vllm import LLM
        from vllm.config import KVTransferConfig

        if connector is not None:
            engine["kv_transfer_config"] = KVTransferConfig(
                kv_connector="LarderConnector", kv_connector_module_path="kvlarder.vllm", kv_role="kv_both",
                kv_load_failure_policy="recompute", kv_connector_extra_config=connector,
            )  # fmt: skip
        settings = {
            "dtype": "bfloat16", "max_model_len": 8192, "max_num_seqs": 1, "enforce_eager": True,
            "enable_prefix_caching": False, "max_num_batched_tokens": CHUNK, "disable_log_stats": False, **engine,
        }  # fmt: skip
        self.llm = LLM(model, **settings)
        self.engine = self.llm.llm_engine
        self.number = 0
        self.watch = None
        self.step = self.engine.step

    def _add(self, prompt):
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self.number += 1
        name = f"t{self.number}"
        asked = {"prompt_token_ids": prompt["tokens"]}
        if prompt.get("salt"):
            asked["cache_salt"] = prompt["salt"]
        self.engine.add_request(
            name, asked,
            SamplingParams(
                temperature=0, max_tokens=prompt.get("n", 16), ignore_eos=True, logprobs=1,
                output_kind=RequestOutputKind.CUMULATIVE,
            ),
        )  # fmt: skip
        return name

    def generate(self, prompts):
        answers = []
        for prompt in prompts:
            begun = time.perf_counter()
            name, first, last = self._add(prompt), None, None
            while last is None or not last.finished:
                for output in self.step():
                    last = output
                    first = first or time.perf_counter() - begun
            token = last.outputs[0]
            answers.append({
                "tokens": list(token.token_ids), "first_logprob": token.logprobs[0][token.token_ids[0]].logprob,
                "first_s": first, "total_s": time.perf_counter() - begun, "cached": last.num_cached_tokens or 0,
                "name": name,
            })  # fmt: skip
            while self.engine.has_unfinished_requests():
                self.step()
        return answers

    def serve(self, prompts, clients, abort, reset, seed):
        rolls, begun = random.Random(seed), time.perf_counter()
        waiting, running, answers, aborted, firsts, errors = list(enumerate(prompts)), {}, {}, 0, {}, []
        since, resets, bad_resets, timeline, logprobs = {}, 0, [], [], {}
        last, gaps = {}, {number: [] for number in range(len(prompts))}
        if self.watch:
            self.watch.begin()
        while waiting or running:
            while waiting and len(running) < clients:
                number, prompt = waiting.pop(0)
                name = self._add(prompt)
                running[name], since[name] = number, time.perf_counter()
            outputs = self.step()
            if self.watch:
                self.watch.step_ended()
            for output in outputs:
                number = running.get(output.request_id)
                if number is None:
                    continue
                now = time.perf_counter()
                if number in firsts:
                    gaps[number].append(now - last[number])
                last[number] = now
                if number not in firsts:
                    token = output.outputs[0]
                    logprobs[number] = token.logprobs[0][token.token_ids[0]].logprob
                    firsts[number] = time.perf_counter() - since[output.request_id]
                    timeline.append((time.time(), output.num_cached_tokens or 0))
                if output.finished:
                    del running[output.request_id]
                    if output.outputs[0].finish_reason == "error":
                        errors.append(number)
                    answers[number] = list(output.outputs[0].token_ids)
            if running and rolls.random() < abort:
                name = rolls.choice(list(running))
                if self.watch:
                    self.watch.aborts(name)
                self.engine.abort_request([name])
                del running[name]
                aborted += 1
            if rolls.random() < reset:
                try:
                    self.llm.reset_prefix_cache(rolls.random() < 0.5, False)
                    resets += 1
                except Exception as error:
                    if held := self.held():
                        bad_resets.append(f"{error} Larder holds {held}")
        return {
            "answers": answers, "seconds": time.perf_counter() - begun, "aborted": aborted, "errors": errors,
            "first_s": firsts, "resets": resets, "bad_resets": bad_resets, "firsts": timeline, "first_logprob": logprobs,
            "gaps_s": gaps,
            **(self.watch.result() if self.watch else {}),
        }  # fmt: skip

    def held(self):
        """Returns what of Larder holds blocks, if vLLM itself holds none; {} otherwise, or if the scheduler is in another process.
        vLLM holds those of a request that loads, and those that a step under way uses."""
        core = getattr(self.engine.engine_core, "engine_core", None)
        if not hasattr(core, "scheduler") or self.side is None:
            return {}
        stores = [job.pages for job in self.side._jobs.values() if not job.load and job.pages]
        restores = [one.pinned for one in self.side.restores._restores.values()] if self.side.restores else []
        blocks = core.scheduler.kv_cache_manager.block_pool.blocks
        if sum(block.ref_cnt for block in blocks if not block.is_null) > sum(map(len, stores + restores)):
            return {}
        return {what: len(pages) for what, pages in (("stores", stores), ("restores", restores)) if pages}

    def metrics(self):
        found = {}
        for metric in self.llm.get_metrics():
            labels = ",".join(f"{k}={v}" for k, v in sorted(metric.labels.items()) if k not in ("engine", "model_name"))
            value = getattr(metric, "value", None)
            found[f"{metric.name}{{{labels}}}"] = metric.count if value is None and hasattr(metric, "count") else value
        return found

    def reset(self, running, connector):
        return self.llm.reset_prefix_cache(running, connector)

    @property
    def side(self):
        return self.engine.engine_core.engine_core.scheduler.connector.scheduler_side

    def restore_by(self, way):
        self.side.restores.pays = lambda tiers, have_blocks: way == "both"
        if way == "computed":
            self.side.matched_tokens = lambda request, computed: (0, False)
        else:
            self.side.__dict__.pop("matched_tokens", None)
        return True

    def load_by_layer(self, always):
        from kvlarder.vllm import scheduler

        scheduler.LAYERS_PATIENCE_S = 30.0  # so that a busy machine makes no load fail
        self.side._goes_by_layer = lambda request, *_: always and self.side._layered is None
        return True

    def lose_layers(self, from_layer):
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        connector = get_kv_transfer_group()
        side, wait = connector._worker, type(connector._worker).wait_for_layer

        def loses(name):
            layered = side._layered
            if layered is None or from_layer is None or side._pages.layer_of[name] < from_layer:
                return wait(side, name)
            if not layered.failed:
                layered.failed = True
                side._cache.cancel(layered.job, wait=True)
            connector._tensors[name][list(side._requests[layered.job][1])] = FreePages.FILL

        side.wait_for_layer = loses
        return True

    def costs(self):
        learnt = self.side.restores.learnt()
        return {
            **{name: getattr(learnt.compute, name) for name in ("fixed_s", "linear_s", "quadratic_s")},
            "rates": [channel.bytes_per_s for channel in learnt.channels],
        }

    def watch_free_pages(self):
        self.watch = FreePages(self.engine.engine_core.engine_core, self.side.restores)
        return True

    def in_its_cache(self, texts):
        from vllm import SamplingParams
        from vllm.v1.request import Request

        core, found = self.engine.engine_core.engine_core, []
        pool = core.scheduler.kv_cache_manager.block_pool
        for text in texts:
            salt = text.get("salt") or None
            asked = Request("asked", text["tokens"], SamplingParams(max_tokens=1), None, cache_salt=salt, block_hasher=core.request_block_hasher)
            content = self.side._contents.of(salt)
            blocks = [number for number, name in enumerate(asked.block_hashes) if pool.get_cached_block(name, [0])]
            found.append({"content": (content.model, content.revision, content.salt.hex(), content.lora), "blocks": blocks})
        return found

    def long_steps(self):
        def step():
            outputs = self.engine.step()
            assert self.side._eventually(self.side._stores_have_ended, 60), "stores that never end"
            return outputs

        self.step = step
        return True

    @staticmethod
    def memory():
        import psutil

        me = psutil.Process()
        infos = [process.memory_info() for process in [me, *me.children(recursive=True)]]
        return sum(info.rss - info.shared for info in infos)

    @staticmethod
    def version():
        import vllm

        return vllm.__version__

    def tokens(self, text):
        return self.llm.get_tokenizer()(text).input_ids


def answer_requests(requests, answers):
    """In the child.  Both are descriptors."""
    requests, answers = os.fdopen(requests, "r"), os.fdopen(answers, "w")
    engine = None
    for line in requests:
        request = json.loads(line)
        verb = request.pop("verb")
        if verb == "start":
            engine = Engine(**request)
            answer = True
        else:
            answer = getattr(engine, verb)(**request)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    engine.llm.llm_engine.engine_core.shutdown()


def main():
    if sys.argv[1] == "prepared":
        Prepared.serve(socket.socket(fileno=int(sys.argv[2])))
    else:
        answer_requests(*map(int, sys.argv[1:3]))


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    main()
