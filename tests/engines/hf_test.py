#!/usr/bin/env python3
"""kvlarder.hf on real models: what is restored in a new process is, bit for bit, what was computed.

hf_test.py LARDERD PYTHON MODELS   PYTHON: of deploy/fetch-vllm.sh; MODELS: folder that hf_model.py wrote
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "client", "python"))

from larderd import Larderd  # noqa: E402

LARDERD, PYTHON, MODELS = (*sys.argv[1:4], "", "", "")[:3]
TOKENS = 2_000 if float(os.environ.get("LARDER_TEST_SCALE", "0.1")) >= 1 else 700  # of a long prompt
CHUNK = 64  # tokens of a block of kvlarder.hf, and of a step here


def child(request):
    """In a process with torch: answers one request."""
    import kvlarder.hf
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache, QuantizedCache, StaticCache

    torch.manual_seed(0)
    torch.set_num_threads(1)  # other tests run beside this one
    model = AutoModelForCausalLM.from_pretrained(request["model"], dtype=torch.float32)
    ids = torch.tensor([request["tokens"]])
    size = len(request["tokens"])

    def compute(cache, known):
        with torch.no_grad():
            while known < size:  # in chunks that begin at the same tokens, restored or not
                last = min(size, known - known % CHUNK + CHUNK)
                logits = model(ids[:, known:last], past_key_values=cache).logits
                known = last
        return logits[0, -1]

    def new():
        return StaticCache(config=model.config, max_cache_len=size + 64) if request["static"] else DynamicCache()

    store = kvlarder.hf.PrefixStore(model, socket_dir=request["socket_dir"], link_bytes_per_s=request["link"])
    if request["what"] == "refusals":
        def offloaded():  # its constructor wants a GPU
            cache = DynamicCache()
            cache.offloading = True
            return cache

        texts = []
        sliding = model.config.__class__(**{**model.config.to_dict(), "sliding_window": 32, "layer_types":
                                            ["sliding_attention"] * model.config.num_hidden_layers})  # fmt: skip
        for make in (
            lambda: DynamicCache(config=sliding),
            lambda: StaticCache(config=sliding, max_cache_len=256),
            offloaded,
            lambda: QuantizedCache("quanto", model.config),
        ):
            try:
                cache = make()
            except ImportError as error:
                texts.append(f"is not installed: {error}")
                continue
            try:
                store.restore(ids, cache)
                texts.append("served")
            except ValueError as error:
                texts.append(str(error))
        return texts
    if request["what"] == "changed":
        cache = new()
        compute(cache, 0)
        known = [store.save(cache, ids), kvlarder.hf.PrefixStore(model, socket_dir=request["socket_dir"]).restore(ids)[1]]
        with torch.no_grad():
            list(model.parameters())[-1].mul_(1.01)  # as another revision of the same name may have it
        return [*known, kvlarder.hf.PrefixStore(model, socket_dir=request["socket_dir"]).restore(ids)[1]]
    if request["what"] == "restart":
        cache = new()
        compute(cache, 0)
        os.kill(request["kills"], signal.SIGKILL)
        while not os.path.exists(os.path.join(request["socket_dir"], "another")):
            time.sleep(0.05)
        return {"saved": store.save(cache, ids), "known": store.restore(ids)[1]}
    if request["what"] == "slow start":
        steps = []

        def first_are_slow(*_):
            steps.append(None)
            time.sleep(3 * (len(steps) <= 3))

        model.register_forward_pre_hook(first_are_slow)
        return [store.prefill(ids, new(), chunk_tokens=CHUNK)[1].computed_tokens for _ in range(10)]
    begun = time.perf_counter()
    what = None
    if request["what"] == "prefill":
        calls = []

        def kill_before(*_):
            calls.append(None)
            time.sleep(request["step_s"])
            if request["kills"] and len(calls) == request["at_call"]:
                os.kill(request["kills"], signal.SIGKILL)

        if request["at_call"] == 0 and request["kills"]:
            os.kill(request["kills"], signal.SIGKILL)
        model.register_forward_pre_hook(kill_before)
        cache, what = store.prefill(ids, new(), chunk_tokens=CHUNK)
        known = int(cache.get_seq_length())
    else:
        cache, known = store.restore(ids, new())
    restored = time.perf_counter() - begun
    begun = time.perf_counter()
    logits = compute(cache, known)
    computed = time.perf_counter() - begun
    saved = store.save(cache, ids) if request["what"] == "save" else 0
    return {
        "loaded": what.loaded_tokens if what else 0, "known": known, "saved": saved, "restored_s": restored, "computed_s": computed,
        "logits": logits.numpy().tobytes().hex(),
    }  # fmt: skip


def children():
    """In a process with torch: reads requests, a line each, and forks a process that answers each of them.  It forks because
    importing torch and transformers takes longer than most answers.  It attaches to no daemon itself, so that a forked process
    knows of Larder what a new one would."""
    import kvlarder.hf  # noqa: F401
    import torch  # noqa: F401
    import transformers  # noqa: F401

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print what is no answer
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            print(json.dumps(child(json.loads(line))), file=answers, flush=True)
            return
        _, status = os.waitpid(pid, 0)
        if status != 0:
            print(json.dumps({"ended": os.waitstatus_to_exitcode(status)}), file=answers, flush=True)


class Caches(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.errors = tempfile.TemporaryFile("w+")
        cls.parent = subprocess.Popen(
            [PYTHON, os.path.abspath(__file__), "children"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=cls.errors, text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"},
        )  # fmt: skip

    @classmethod
    def tearDownClass(cls):
        with cls.parent, cls.errors:  # closes the parent's input, at which it ends, and waits for that
            pass

    def setUp(self):
        self.daemon = Larderd(LARDERD, "--pool", "1GiB")
        self.addCleanup(self.daemon.end)

    def ask(self, what, model="smol", tokens=TOKENS, static=False, shift=0, link=0, kills=0, at_call=0, step_s=0):
        request = {
            "what": what, "model": os.path.join(MODELS, model), "static": static, "link": link, "kills": kills, "at_call": at_call,
            "step_s": step_s, "socket_dir": self.daemon.socket_dir,
            "tokens": [(number * 37 + shift + number // 9) % 480 + 10 for number in range(tokens)],
        }  # fmt: skip
        self.parent.stdin.write(json.dumps(request) + "\n")
        self.parent.stdin.flush()
        answer = self.parent.stdout.readline()
        if not answer or "ended" in (answer := json.loads(answer)):
            self.errors.seek(0)
            self.fail(f"{answer or 'no answer'}: {self.errors.read()[-3000:]}")
        return answer

    def test_a_new_process_goes_on(self):
        for static in (False, True):  # the mask of a static cache makes other bits, so each restores its own
            kind, shift = "static" if static else "dynamic", 100 * static
            first = self.ask("save", static=static, shift=shift)
            again = self.ask("restore", static=static, shift=shift)
            whole = (TOKENS - 1) // CHUNK * CHUNK
            self.assertEqual((first["known"], first["saved"], again["known"]), (0, TOKENS // CHUNK * CHUNK, whole))
            self.assertEqual(again["logits"], first["logits"], f"{kind}: other bits")
            print(f"{kind}: restored in {again['restored_s']:.3f} s, computed in {first['computed_s']:.3f} s: "
                  f"{again['restored_s'] / first['computed_s']:.4f}")  # fmt: skip
        prefix = self.ask("restore", tokens=TOKENS // 2)
        self.assertEqual(prefix["known"], (TOKENS // 2 - 1) // CHUNK * CHUNK)
        self.assertEqual(self.ask("restore", shift=1)["known"], 0)
        self.assertEqual(self.ask("restore", model="tiny")["known"], 0)

    def test_prefill_computes_the_head_while_the_tail_is_loaded(self):
        """Over an emulated link on which loading takes as long as computing."""
        block_bytes = 30 * 2 * 3 * 64 * 4 * CHUNK  # of smol in float32: layers, planes, heads, values, bytes, tokens
        for static, tokens in ((False, TOKENS), (True, 600)):  # a static cache is slow to compute
            more = {"static": static, "tokens": tokens, "shift": 200 + static}
            known = (tokens - 1) // CHUNK * CHUNK
            first = self.ask("save", **more)
            link = first["saved"] // CHUNK * block_bytes / first["computed_s"]
            both = self.ask("prefill", **more, link=link)
            self.assertEqual(both["known"], known)
            self.assertGreater(both["loaded"], 0)
            self.assertLess(both["loaded"], known)
            self.assertEqual(both["logits"], first["logits"], "other bits")
            print(f"both at once {both['restored_s']:.3f} s, {both['loaded']} of {known} tokens loaded; either alone "
                  f"{first['computed_s']:.3f} s: {both['restored_s'] / first['computed_s']:.2f}")  # fmt: skip
        self.assertEqual(self.ask("prefill", tokens=300)["loaded"], 0)  # nothing is stored

    def test_prefill_computes_when_the_daemon_is_gone(self):
        first = self.ask("save", model="tiny", tokens=500)
        both = self.ask("prefill", model="tiny", tokens=500, step_s=0.1)  # so that there is time to load something
        self.assertEqual((both["logits"], both["known"]), (first["logits"], 448))
        self.assertGreater(both["loaded"], 0)
        link = 4 * 2 * 2 * 64 * 4 * 448 / 2  # bytes per second at which loading everything takes 2 s
        for at_call in (2, 0):  # while it loads, and before it asks
            alone = self.ask("prefill", model="tiny", tokens=500, link=link, kills=self.daemon.process.pid, at_call=at_call)
            self.assertEqual((alone["logits"], alone["known"]), (first["logits"], 448))
            self.daemon.kill()
            if at_call:
                self.daemon.start()
                self.daemon.await_pool()
        self.assertEqual(alone["loaded"], 0)

    def test_slow_steps_do_not_end_computing(self):
        self.ask("save", model="tiny", tokens=500)
        computed = self.ask("slow start", model="tiny", tokens=500, link=4 * 2 * 2 * 64 * 4 * 448)  # bytes per second: 1 s for all
        self.assertGreater(computed[-1], 0, computed)

    def test_a_store_attaches_again_after_the_daemon_was_restarted(self):
        def restart():
            self.daemon.process.wait()
            self.daemon.start()
            self.daemon.await_pool()
            with open(os.path.join(self.daemon.socket_dir, "another"), "w", encoding="ascii"):
                pass

        thread = threading.Thread(target=restart)
        thread.start()
        again = self.ask("restart", model="tiny", tokens=500, kills=self.daemon.process.pid)
        thread.join()
        self.assertEqual((again["saved"], again["known"]), (448, 448))

    def test_weights_that_differ_in_memory_do_not_share(self):
        saved, same, changed = self.ask("changed", model="tiny", tokens=256)
        self.assertGreater(saved, 0)
        self.assertEqual((same, changed), (192, 0))

    def test_a_static_cache_is_saved(self):
        first = self.ask("save", model="tiny", tokens=500, static=True)
        self.assertEqual(first["saved"], 448)
        for static in (False, True):
            again = self.ask("restore", model="tiny", tokens=500, static=static)
            self.assertEqual(again["known"], 448)
            if static:
                self.assertEqual(again["logits"], first["logits"])

    def test_a_chat_goes_on_after_a_kill(self):
        history = os.path.join(self.daemon.socket_dir, "history")
        command = [PYTHON, os.path.join(os.path.dirname(os.path.abspath(__file__)), "hf_chat.py"), os.path.join(MODELS, "smol"),
                   history, "--socket-dir", self.daemon.socket_dir, "--tokens", "90"]  # fmt: skip
        restored = []
        for question in ("What is a lighthouse?", "Who built them?"):
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                  env={**os.environ, "HF_HUB_OFFLINE": "1"}) as chat:  # fmt: skip
                chat.stdin.write(question + "\n")
                chat.stdin.flush()
                restored.append(int(chat.stdout.readline().split()[0]))
                self.assertTrue(chat.stdout.readline().strip(), "no answer")
                chat.kill()
        self.assertEqual(restored[0], 0)
        self.assertGreaterEqual(restored[1], 64)

    def test_other_caches_are_refused_by_name(self):
        texts = self.ask("refusals", model="tiny", tokens=200)
        for text, name in zip(texts, ("DynamicSlidingWindowLayer", "StaticSlidingWindowLayer", "offloading", "uant")):
            self.assertIn(name, text)
            self.assertNotEqual(text, "served")
        print(texts[-1])


if __name__ == "__main__":
    if sys.argv[1] == "children":
        children()
        sys.exit()
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
