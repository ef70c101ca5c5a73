#!/usr/bin/env python3
"""The storage backend of SGLang 0.5.23, with SGLang's own factory, host pools, controller and fault injector, on a real
daemon.  No SGLang server runs: HiCache needs a GPU.

sglang_test.py LARDERD           runs the tests
sglang_test.py LARDERD --write   writes the tables of docs/engines/sglang.md
"""

import collections
import contextlib
import dataclasses
import itertools
import os
import pathlib
import random
import sys
import tempfile
import threading
import time
import types
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "client", "python"))

import kvlarder  # noqa: E402
import sglang_parts as sglang  # noqa: E402
import sglang_pools as pools  # noqa: E402
from kvlarder import hash_keys, interfaces, weights  # noqa: E402
from kvlarder.sglang import api, config, identity, page_names, promises, session_keeper, stats, storage, versions  # noqa: E402
from kvlarder.sglang.refusal import Refused  # noqa: E402
from larderd import Larderd  # noqa: E402
from sglang_controller import Controller, key_of  # noqa: E402

SCALE = float(os.environ.get("LARDER_TEST_SCALE", "0.1"))
SEED = int(os.environ.get("LARDER_TEST_SEED", "0")) or random.SystemRandom().getrandbits(32)
PAGE = 16
LIMIT_S = 20  # until a daemon that was started or goes on serves again


def storage_config(extra=None, larder=None, **more):
    """Returns SGLang's configuration of one process, with options of Larder."""
    values = {
        "tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1, "is_mla_model": False,
        "enable_storage_metrics": False, "is_page_first_layout": True, "model_name": "tests/model",
    }  # fmt: skip
    options = {"revision": "r", "exists_timeout_ms": 10_000, **(larder or {})}
    extra = {
        "backend_name": "larder", "module_path": "kvlarder.sglang", "class_name": "LarderStorage", "interface_v1": 1,
        "larder": options, **(extra or {}),
    }  # fmt: skip
    return sglang.HiCacheStorageConfig(**{**values, **more}, extra_config=extra)


def until(condition, what):
    """Waits for something that another thread or process does."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {LIMIT_S} s")
        time.sleep(0.005)


def keys_of(count, name=""):
    return pools.chain_of_keys(sglang.storage_namespace_seed(name, None), [[n] * PAGE for n in range(count)])


class Attached:
    """A storage as SGLang attaches it, with its pool."""

    def __init__(self, socket_dir, pool, rank=0, larder=None, **more):
        self.pool, self.rank = pool, rank
        made = storage_config(larder={"socket_dir": socket_dir, **(larder or {})}, tp_rank=rank, **more)
        self.storage = sglang.StorageBackendFactory.create_backend("dynamic", made, pool)
        self.larder = getattr(self.storage, "_backend", self.storage)  # without SGLang's fault injector
        self.storage.register_mem_pool_host(pool)
        self.storage.register_mem_host_pool_v2(pool, sglang.PoolName.KV)
        self.storage.on_host_pools_registered()

    def serving(self):
        until(lambda: not self.larder.state, f"the daemon serves ({self.larder.state})")
        return self

    def set(self, keys, pages=None, extra=None):
        """Stores the pages of these keys, from pages of these numbers, by default from 0 on."""
        pages = pages or range(len(keys))
        for key, page in zip(keys, pages):
            pools.fill(self.pool, page * self.pool.page_size, key, self.rank)
        return self.storage.batch_set_v1(keys, pools.slots(self.pool, pages), extra)

    def get(self, keys, pages=None, extra=None, rank=None):
        """Loads into these pages, and checks each byte of what is said to be there.  rank: whose bytes are expected."""
        pages = list(pages or range(len(keys)))
        for page in pages:
            pools.fill(self.pool, page * self.pool.page_size, "nothing", self.rank)
        answer = self.storage.batch_get_v1(keys, pools.slots(self.pool, pages), extra)
        for key, page, there in zip(keys, pages, answer, strict=True):
            if not pools.holds(self.pool, page * self.pool.page_size, key if there else "nothing",
                               self.rank if rank is None or not there else rank):  # fmt: skip
                raise AssertionError(f"wrong bytes in page {page} of key {key}, which is {'there' if there else 'not there'}")
        return answer

    def exists(self, keys, extra=None):
        return self.storage.batch_exists(keys, extra)


PATIENT = {name: 60_000 for name in ("exists_timeout_ms", "get_timeout_ms", "set_timeout_ms")}
NO_WAIT_S = 20.0  # a call that has waited for PATIENT takes longer, and one that has not takes less on a busy machine, too


class WithDaemon(unittest.TestCase):
    FLAGS = ("--pool", "64MiB")
    PROBE_S = 30.0  # on a busy machine a probe that is late would make all answers misses

    def setUp(self):
        self.larderd = Larderd(sys.argv[1], *self.FLAGS)
        self.addCleanup(self.larderd.end)
        self.enterContext(mock.patch.object(session_keeper, "PROBE_DEADLINE_S", self.PROBE_S))

    def attached(self, pool=None, **more):
        one = Attached(self.larderd.socket_dir, pool or pools.mha_pool(), **more)
        self.addCleanup(one.storage.close)
        return one.serving()

    def restart(self):
        """Starts the daemon again; its pool is empty."""
        self.larderd.start()
        self.larderd.await_pool()


class Options(unittest.TestCase):
    def test_defaults(self):
        for extra in (None, {}, {"larder": {}}, {"backend_name": "larder", "file_storage_path": "x"}):
            self.assertEqual(config.Config.of(extra), config.Config())

    def test_what_is_wrong_is_refused_with_what_is_right(self):
        for options, text in (
            ({"timeout": 3}, "options are .*socket_dir|did you mean '.*timeout"),
            ({"chain": True}, "did you mean 'chained'"),
            ({"chained": 1}, "chained must be true or false, not 1"),
            ({"get_timeout_ms": 1}, "get_timeout_ms must be 50 to 600000"),
            ({"promise_life_s": 2.5}, "promise_life_s must be a whole number"),
            ([], "larder must be an object"),
        ):
            with self.assertRaisesRegex(ValueError, text):
                config.Config.of({"larder": options})


def option_rows():
    yield from ("| option | default | values | meaning |", "|---|---|---|---|")
    for field in dataclasses.fields(config.Config):
        limits, default = field.metadata, field.default
        values = "text" if isinstance(default, str) else "true, false"
        if limits["one_of"] is not None:
            values = ", ".join(f"`{value}`" for value in limits["one_of"])
        elif limits["least"] is not None:
            values = f"{limits['least']} to {limits['most']}"
        shown = "empty" if default == "" else f"`{str(default).lower()}`"
        yield f"| `{field.name}` | {shown} | {values} | {limits['doc']} |"


def version_rows():
    yield from ("| package | version | Python | what ran |", "|---|---|---|---|")
    yield from (f"| {' | '.join(row)} |" for row in versions.TESTED)


def counter_rows():
    yield from ("| counter | meaning |", "|---|---|")
    yield from (f"| `{name}` | {meaning} |" for name, meaning in stats.COUNTERS.items())


def argument_rows():
    flags = sglang.flags()
    yield from ("| arguments of SGLang | |", "|---|---|")
    for names, what in (
        (identity.MEANING, "their values are in the names of pages"),
        (("quantization_param_path",), "the contents of its file are in the names of pages"),
        (identity.FROM_ELSEWHERE, "are refused with values that may replace what is read from `--model-path`"),
        (("load_format",), f"is refused, except {', '.join(f'`{name}`' for name in identity.FROM_MODEL_FILES)}"),
        (("download_dir",), "is refused with a model of the hub"),
    ):
        yield f"| {', '.join(f'`{flags[name]}`' for name in names)} | {what} |"


TABLES = {"options": option_rows, "counters": counter_rows, "versions": version_rows, "arguments": argument_rows}


def documented(text):
    """Returns the documentation with its tables made anew."""
    for name, rows in TABLES.items():
        begin, end = f"<!-- {name}: made by tests/engines/sglang_test.py --write -->\n", f"<!-- {name} end -->"
        before, _, rest = text.partition(begin)
        text = before + begin + "\n".join(rows()) + "\n" + end + rest.partition(end)[2]
    return text


DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "engines" / "sglang.md"


class Documentation(unittest.TestCase):
    def test_tables(self):
        text = DOCUMENT.read_text(encoding="utf-8")
        self.assertEqual(text, documented(text), "run tests/engines/sglang_test.py LARDERD --write")


class Interface(unittest.TestCase):
    def test_the_installed_sglang_fits(self):
        self.assertEqual(list(interfaces.problems(api.HiCacheStorage, api.EXPECTED)), [])
        self.assertIn(("sglang", api.VERSION), [row[:2] for row in versions.TESTED])

    def test_another_interface_is_refused_by_name(self):
        class Other(sglang.HiCacheStorage):
            def batch_get_v1(self, keys, slots):
                pass

        with self.assertRaisesRegex(ImportError, r"batch_get_v1 takes \(keys, slots\), not \(keys, host_indices, extra_info\)"):
            api.check(Other)

    def test_an_argument_that_sglang_does_not_have(self):
        self.assertIsNone(api.server_args())
        with sglang.get_context().override_server_args():
            with self.assertRaisesRegex(AttributeError, "SGLang .* has no server argument modle_path"):
                api.server_args().modle_path


class Refusals(unittest.TestCase):
    """What is not served is refused with a sentence, and `close` does nothing bad afterwards."""

    def refused(self, text, pool=None, sidecar=None, **more):
        with self.assertRaisesRegex(ValueError, text):
            made = storage.LarderStorage(storage_config(**more), {})
            self.addCleanup(made.close)
            made.close()
            made.register_mem_pool_host(pool or pools.mha_pool())
            if sidecar:
                made.register_mem_host_pool_v2(object(), sidecar)
            made.on_host_pools_registered()

    def test_configurations(self):
        self.refused('add "interface_v1": 1', extra={"interface_v1": 0})
        self.refused("context parallelism", attn_cp_size=2)
        self.refused("remove tp_lcm_size", should_split_heads=True)
        self.refused("set the option 'model'", model_name=None)
        self.refused("a name of 257 bytes", larder={"model": "m" * 257})
        self.refused("has no option 'revison': did you mean 'revision'", larder={"revison": "x"})
        self.refused("do not share KV as pages of mha do", is_mla_model=True)

    def test_pools(self):
        other = type("LogicalHostPool", (), {})()
        self.refused("its KV lies in a LogicalHostPool", pool=other)
        self.refused("layout layer_first; use --hicache-mem-layout page_first", pool=pools.mha_pool("layer_first"))
        self.refused("layout page_head", pool=pools.mha_pool("page_head"))
        self.refused("pages have 24 tokens; use --page-size 64", pool=pools.mha_pool(page=24))
        self.refused("pages have 8 tokens", pool=pools.mha_pool(page=8))
        self.refused("KV of a draft model", pool=pools.mha_pool(drafts=1))
        destroyed = pools.mha_pool()
        destroyed.destroy()
        self.refused("no memory of its own", pool=destroyed)

    def test_v2_pools_by_name(self):
        self.refused("needs the pools mamba, and Larder keeps kv alone", sidecar=sglang.PoolName.MAMBA)

    def test_weights_that_are_not_known(self):
        self.refused("does not know which weights it has; set the option 'revision'", larder={"revision": ""})
        with tempfile.TemporaryDirectory() as folder, self.published(folder, load_format="dummy") as args:
            self.refused("--load-format dummy", larder={"revision": ""})
            args.change(load_format="auto")
            self.refused("it is not known which weights", larder={"revision": ""})

    def test_weights_from_elsewhere(self):
        """They are refused, unless the option 'revision' names them."""
        changes = {
            "weight_cache_mode": "client", "checkpoint_engine_wait_weights_before_ready": True, "kt_weight_path": "/experts",
            "modelopt_checkpoint_restore_path": "/m.pth", "decrypted_config_file": "/c.json",
        }  # fmt: skip
        self.assertEqual(changes.keys(), identity.FROM_ELSEWHERE.keys())
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "a.safetensors").write_bytes(b"1")
            for name, value in changes.items():
                with self.subTest(name), self.published(folder, **{name: value}):
                    self.refused(f"--{name.replace('_', '-')}.* elsewhere.*option 'revision'", larder={"revision": ""})
                    self.identity(larder={"revision": "r"})
            with self.published(folder, model_path="a/model", download_dir=folder):
                self.refused("--download-dir", larder={"revision": ""})

    @contextlib.contextmanager
    def published(self, folder, **more):
        """SGLang's own arguments in effect, as its scheduler publishes them."""
        args = {"model_path": folder, "load_format": "auto", **more}
        with mock.patch.dict(os.environ, {"LARDER_CACHE": folder}), sglang.get_context().override_server_args(**args):
            yield types.SimpleNamespace(change=lambda **values: sglang.get_context().override("test", **values))

    def identity(self, pool=None, larder=None, **more):
        made = storage.LarderStorage(storage_config(larder=larder, **more))
        made.register_mem_pool_host(pool or pools.mha_pool())
        return made._identity

    def test_what_changes_the_kv_changes_the_names(self):
        """Each argument that it is in, read from SGLang, whose own check fails for a name that it does not have."""
        known = {"dtype", "kv_cache_dtype", "quantization", "modelopt_quant", "model_config_parser", "rl_on_policy_target"}
        self.assertLessEqual(known, set(identity.MEANING))
        values = {"json_model_override_args": '{"a": 1}', "context_length": 4096, "mm_process_config": {"image": {"a": 1}}}
        with tempfile.TemporaryDirectory() as folder, self.published(folder) as args:
            pathlib.Path(folder, "a.safetensors").write_bytes(b"1")
            names = [self.identity(larder={"revision": ""}).content]
            for name in identity.MEANING:
                before = getattr(api.server_args(), name)
                args.change(**{name: values.get(name, f"not {before}")})
                names.append(self.identity(larder={"revision": ""}).content)
                self.assertNotIn(names[-1], names[:-1], name)
                args.change(**{name: before})
                self.assertEqual(self.identity(larder={"revision": ""}).content, names[0])

    def test_what_files_change_the_names(self):
        """Weights, configuration and scales of fp8, by their contents."""
        with tempfile.TemporaryDirectory() as folder, self.published(folder) as args:
            names = []
            scales = pathlib.Path(folder, "scales")
            for name in ("a.safetensors", *weights.CONFIG_FILES, *identity.CONFIG_FILES, "modeling.py", scales.name):
                for content in ("1", "22"):
                    pathlib.Path(folder, name).write_text(content)
                    args.change(quantization_param_path=str(scales) if scales.exists() else None)
                    names.append(self.identity(larder={"revision": ""}).content)
                    self.assertNotIn(names[-1], names[:-1], name)
            pathlib.Path(folder, "tokenizer.json").write_text("3")
            self.assertEqual(self.identity(larder={"revision": ""}).content, names[-1])
            scales.unlink()
            self.refused("which weights it has .*scales", larder={"revision": ""})

    def test_the_configuration_beside_a_file_of_weights(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "m.gguf")
            path.write_bytes(b"1")
            with self.published(folder, model_path=str(path)):
                before = self.identity(larder={"revision": ""}).content
                pathlib.Path(folder, "config.json").write_text('{"rope_theta": 1}')
                self.assertNotEqual(self.identity(larder={"revision": ""}).content, before)

    def test_weights_that_sglang_has_loaded_since(self):
        """A storage that is attached later names them."""
        with tempfile.TemporaryDirectory() as old, tempfile.TemporaryDirectory() as new, self.published(old) as args:
            for folder in (old, new):
                pathlib.Path(folder, "a.safetensors").write_text(folder)
            before = self.identity(larder={"revision": ""}).content
            args.change(model_path=new)
            self.assertNotEqual(self.identity(larder={"revision": ""}).content, before)

    def test_fp8_is_named_by_its_kind(self):
        pool = pools.mha_pool(dtype=pools.torch.uint8)
        self.refused("its KV is None .torch.uint8.; use --kv-cache-dtype", pool=pool)
        with tempfile.TemporaryDirectory() as folder, self.published(folder, kv_cache_dtype="auto") as args:
            self.refused("its KV is auto", pool=pool)
            ids = set()
            for kind in identity.FP8:
                args.change(kv_cache_dtype=kind)
                ids.add(self.variant_id(pool))
            self.assertEqual(len(ids), 2)

    def test_fp8_is_named_by_the_kernels_that_scale_it(self):
        fp8, plain = pools.mha_pool(dtype=pools.torch.uint8), pools.mha_pool()
        with tempfile.TemporaryDirectory() as folder, self.published(folder, kv_cache_dtype="fp8_e4m3") as args:
            for pool, count in ((fp8, 4), (plain, 1)):
                ids = []
                for kernels in (
                    {"attention_backend": "triton"}, {"attention_backend": "torch_native"},
                    {"prefill_attention_backend": "triton"}, {"decode_attention_backend": "fa3"},
                    {"prefill_attention_backend": None, "attention_backend": "triton"},
                ):  # fmt: skip
                    args.change(**kernels)
                    ids.append(self.variant_id(pool))
                self.assertEqual(len(set(ids)), count)
                self.assertEqual(ids[4], ids[3], "triton for prefill and fa3 for decode, given in two ways")
                args.change(decode_attention_backend=None)

    def variant_id(self, pool, **more):
        spec = self.identity(pool, **more).variant
        return repr([getattr(spec, name) for name in ("layers", "block_tokens")]) + "|".join(map(str, self.variants.pop()))

    def setUp(self):
        real, self.variants = kvlarder.VariantSpec, []

        def seen(**values):
            self.variants.append(sorted(values.items()))
            return real(**values)

        patch = mock.patch.object(identity.kvlarder, "VariantSpec", seen)
        patch.start()
        self.addCleanup(patch.stop)

    def test_what_decides_bytes_is_in_the_variant(self):
        mha, mla = pools.mha_pool, pools.mla_pool
        ids = [
            self.variant_id(pool, **more)
            for pool, more in (
                (mha(), {}), (mha("page_first_direct"), {}), (mha(layers=3), {}), (mha(heads=4), {}), (mha(dim=16), {}),
                (mha(v_dim=4), {}), (mha(page=32), {}), (mha(dtype=pools.torch.float16), {}), (mha(first_layer=2), {}),
                (mha(heads=1, dim=16), {}), (mha(), {"tp_size": 2}), (mha(), {"tp_size": 2, "tp_rank": 1}),
                (mla(), {"is_mla_model": True}), (mla("page_first_direct"), {"is_mla_model": True}),
                (mla(rank=8, rope=24), {"is_mla_model": True}), (mla(layers=1), {"is_mla_model": True}),
            )
        ]  # fmt: skip
        self.assertEqual(len(set(ids)), len(ids))
        ranks = {self.variant_id(mla(), is_mla_model=True, tp_size=4, tp_rank=rank) for rank in range(4)}
        self.assertEqual(len(ranks), 1, "all ranks of MLA have the same bytes")
        again = self.variant_id(mha(), dp_rank=1, enable_storage_metrics=True)
        self.assertEqual(again, ids[0], "replicas share")


class Names(unittest.TestCase):
    def setUp(self):
        self.seed = bytes(range(16))
        self.keys = keys_of(40)

    def test_keys_take_the_place_of_tokens(self):
        names = page_names.PageNames(self.seed, PAGE, False).of(self.keys)
        plain = hash_keys.HashKeys(self.seed, PAGE)
        self.assertEqual(names, [plain.name(bytes.fromhex(key)) for key in self.keys])

    def test_a_chain_does_not_depend_on_where_calls_begin(self):
        whole = page_names.PageNames(self.seed, 64, True).of(self.keys)
        self.assertEqual(
            [tuple(name) for name in whole],
            hash_keys.HashKeys(self.seed, 64).chain([bytes.fromhex(key) for key in self.keys]),
        )
        for at in (1, 7, 39):
            new = page_names.PageNames(self.seed, 64, True)
            self.assertEqual(new.of(self.keys[at:], self.keys[:at]), whole[at:])
            self.assertEqual(new.of(self.keys[at:], self.keys[:at]), whole[at:], "what it remembers is the same")
            self.assertEqual(new.of(self.keys[:at]), whole[:at])
        with mock.patch.object(page_names, "REMEMBERED_MAX", 3):
            forgets = page_names.PageNames(self.seed, 64, True)
            self.assertEqual(forgets.of(self.keys[20:], self.keys[:20]), whole[20:])
            self.assertEqual(len(forgets._digests), 3)

    def test_what_is_no_key(self):
        bad = ("", "xyz", "0", None, 7, b"00", "00" * 61, "zz" * 32)
        names = page_names.PageNames(self.seed, PAGE, False)
        for key in bad:
            self.assertEqual([name is None for name in names.of([self.keys[0], key, self.keys[1]])], [False, True, False])
        chained = page_names.PageNames(self.seed, PAGE, True)
        for key in bad:
            found = chained.of([self.keys[0], key, self.keys[1]])
            self.assertEqual([name is None for name in found], [False, True, True])
            self.assertEqual(page_names.PageNames(self.seed, PAGE, True).of(self.keys[1:], [self.keys[0], key])[0], None)


class Pages(WithDaemon):
    def test_each_byte_of_each_kind_of_pool(self):
        t = pools.torch
        for make, mla, options in (
            (pools.mha_pool, False, {}),
            (pools.mha_pool, False, {"dtype": t.float32, "page": 64, "layers": 3}),
            (pools.mha_pool, False, {"v_dim": 4, "dim": 24}),
            (pools.mla_pool, True, {}),
            (pools.mla_pool, True, {"dtype": t.float16, "page": 32, "rank": 40}),
        ):
            for layout in ("page_first", "page_first_direct"):
                with self.subTest(pool=make.__name__, layout=layout, **options):
                    one = self.attached(make(layout, **options), is_mla_model=mla)
                    keys = keys_of(20)
                    self.assertEqual(one.exists(keys), 0, "another layout is another block")
                    self.assertEqual(one.set(keys, range(40, 60)), [True] * 20)
                    self.assertEqual(one.exists(keys), 20)
                    scattered = random.Random(1).sample(range(64), 20)
                    self.assertEqual(one.get(keys, scattered), [True] * 20)
                    self.assertEqual(one.set(keys), [True] * 20, "stored already")
                    one.storage.close()
                    other = self.attached(make(layout, **options), is_mla_model=mla)
                    self.assertEqual(other.exists(keys), 20, "another session has the same names")
                    self.assertEqual(other.get(keys), [True] * 20)

    def test_pages_beside_those_loaded_are_not_touched(self):
        one = self.attached()
        keys = keys_of(3)
        one.set(keys)
        for page in range(64):
            pools.fill(one.pool, page * PAGE, f"other {page}")
        self.assertEqual(one.storage.batch_get_v1(keys, pools.slots(one.pool, [10, 30, 63])), [True] * 3)
        for page in set(range(64)) - {10, 30, 63}:
            self.assertTrue(pools.holds(one.pool, page * PAGE, f"other {page}"))

    def test_the_longest_consecutive_part_is_counted(self):
        one = self.attached()
        keys = keys_of(60)
        one.set(keys[:20] + keys[21:40], list(range(20)) + list(range(21, 40)))
        self.assertEqual([one.exists(keys[at:]) for at in (0, 19, 20, 21, 39, 40)], [20, 1, 0, 19, 1, 0])
        self.assertEqual(one.exists([]), 0)
        self.assertEqual(one.exists([keys[0], keys[0], keys[1], keys[0], keys[50]]), 4, "keys may come twice")
        self.assertEqual(one.get([keys[0], keys[20], keys[21]]), [True, False, True])
        self.assertTrue(one.storage.exists(keys[0]))
        self.assertFalse(one.storage.exists(keys[20]))

    def test_more_pages_than_one_promise_takes(self):
        one = self.attached(pools.mha_pool(pages=300, heads=1, layers=1))
        keys = keys_of(300)
        for at in range(0, 300, 100):
            self.assertEqual(one.set(keys[at : at + 100]), [True] * 100)
        with mock.patch.object(kvlarder, "LOOKUP_TOKENS_MAX", 64 * PAGE):
            self.assertEqual(one.exists(keys), 300)
            self.assertEqual(one.exists(keys[:70] + ["00" * 32] + keys[70:]), 70)

    def test_ranks_have_pages_of_their_own(self):
        ranks = [self.attached(rank=rank, tp_size=2) for rank in range(2)]
        keys = keys_of(8)
        self.assertEqual(ranks[0].set(keys), [True] * 8)
        self.assertEqual([rank.exists(keys) for rank in ranks], [8, 0])
        self.assertEqual(ranks[1].set(keys[:4]), [True] * 4)
        self.assertEqual([rank.exists(keys) for rank in ranks], [8, 4])
        for rank in ranks:
            self.assertEqual(rank.get(keys[:4]), [True] * 4)

    def test_one_rank_of_mla_writes_for_all(self):
        ranks = [self.attached(pools.mla_pool(), rank=rank, tp_size=3, is_mla_model=True) for rank in range(3)]
        keys = keys_of(8)
        self.assertEqual(ranks[1].set(keys), [True] * 8, "rank 0 stores them")
        self.assertEqual([rank.exists(keys) for rank in ranks], [0, 0, 0])
        self.assertEqual(ranks[0].set(keys), [True] * 8)
        for rank in ranks:
            self.assertEqual(rank.exists(keys), 8)
            self.assertEqual(rank.get(keys, rank=0), [True] * 8)

    def test_stages_have_layers_of_their_own(self):
        stages = [self.attached(pools.mha_pool(first_layer=2 * stage), pp_rank=stage, pp_size=2) for stage in range(2)]
        keys = keys_of(4)
        stages[0].set(keys)
        self.assertEqual([stage.exists(keys) for stage in stages], [4, 0])

    def test_salts_and_adapters_share_nothing(self):
        """Two salts and two adapters, as SGLang's keys have them: no hit across."""
        one = self.attached()
        tokens = [[7] * PAGE] * 6
        spaces = list(itertools.product(("lora-a", "lora-b", None), ("salt-1", "salt-2", None)))
        chains = {space: pools.chain_of_keys(sglang.storage_namespace_seed(*space), tokens) for space in spaces}
        for done, (space, keys) in enumerate(chains.items(), 1):
            self.assertEqual(one.exists(keys), 0, space)
            self.assertEqual(one.set(keys), [True] * 6)
            self.assertEqual(sum(one.exists(other) for other in chains.values()), 6 * done)
            self.assertEqual(one.get(keys), [True] * 6)

    def test_chained_names(self):
        extra = sglang.HiCacheStorageExtraInfo
        one, plain = self.attached(larder={"chained": True}), self.attached()
        keys = keys_of(30)
        self.assertEqual(one.set(keys[:10], extra=extra(prefix_keys=[])), [True] * 10)
        self.assertEqual(one.set(keys[10:20], extra=extra(prefix_keys=keys[:10])), [True] * 10)
        self.assertEqual(one.exists(keys), 20)
        self.assertEqual(one.exists(keys[5:], extra(prefix_keys=keys[:5])), 15)
        self.assertEqual(one.get(keys[8:20], extra=extra(prefix_keys=keys[:8])), [True] * 12)
        self.assertEqual(plain.exists(keys[1:]), 0, "other names")
        self.assertEqual(one.exists(keys[:2] + ["no key"] + keys[2:]), 2)
        client = kvlarder.connect(self.larderd.socket_dir)
        content = hash_keys.content_of("tests/model", revision="r")
        names = page_names.PageNames(plain.larder._keeper.get().names.seed, PAGE, True).of(keys)
        found = client.lookup(content, steps=b"".join(name.digest for name in names))
        self.assertEqual(found.instances[0].tiers[0].contiguous, 20 * PAGE, "Lookup finds a chain by its steps")
        stand_ins = [token for name in names[:12] for token in name.tokens]
        self.assertEqual(client.lookup(content, tokens=stand_ins).instances[0].tiers[0].contiguous, 12 * PAGE)
        client.clear(kvlarder.SelectionScope.PREFIX, kvlarder.BlockSelection(content=content, tokens=stand_ins))
        self.assertEqual(one.exists(keys[19:], extra(prefix_keys=keys[:19])), 0, "what follows is removed with a prefix")

    def test_pages_that_are_promised_stay(self):
        """What SGLang was told is stored is still there when it loads it, whatever others store meanwhile."""
        one, other = self.attached(pools.mha_pool(pages=128, heads=8, dim=32)), None
        keys, page_bytes = keys_of(100), one.larder._pages.bytes
        one.set(keys)
        self.assertEqual(one.exists(keys), 100)
        other = self.attached(pools.mha_pool(pages=128, heads=8, dim=32))
        for round_ in range(2 * (64 << 20) // (128 * page_bytes) + 1):
            other.set(keys_of(128, f"round {round_}"))
        self.assertEqual(other.exists(keys_of(128, "round 0")), 0, "the pool was written over")
        self.assertEqual(one.get(keys), [True] * 100)
        self.assertEqual(len(one.larder._promises), 0, "it is let go once all was read")

    def test_clear(self):
        one, other = self.attached(), self.attached(rank=1, tp_size=2)
        keys = keys_of(5)
        one.set(keys)
        other.set(keys)
        elsewhere = self.attached(model_name="another")
        elsewhere.set(keys)
        one.exists(keys)
        one.storage.clear()
        self.assertEqual([each.exists(keys) for each in (one, other, elsewhere)], [0, 0, 5])
        self.larderd.kill()
        unattached = storage.LarderStorage(storage_config())
        for each, text in ((one.storage, "no larderd answers"), (unattached, "it is not attached")):
            with self.assertRaisesRegex(RuntimeError, f"Larder was not cleared: {text}"):
                each.clear()

    def test_a_page_that_is_larger_than_a_slab(self):
        larderd = Larderd(sys.argv[1], "--pool", "64MiB", "--slab", "16MiB")
        self.addCleanup(larderd.end)
        one = Attached(larderd.socket_dir, pools.mha_pool(pages=2, heads=64, dim=512, layers=10))
        self.addCleanup(one.storage.close)
        until(lambda: "larger --slab" in one.larder.state, "the storage says so")
        self.assertEqual((one.exists(keys_of(1)), one.set(keys_of(1)), one.get(keys_of(1))), (0, [False], [False]))

    def test_what_sglang_does_without_interface_v1(self):
        one = self.attached()
        self.assertIsNone(one.storage.get("00"))
        self.assertEqual(one.storage.batch_get(["00", "01"]), [None, None])
        self.assertFalse(one.storage.set("00", b""))
        self.assertFalse(one.storage.batch_set(["00"], [b""]))

    def test_counters_and_sglangs_metrics(self):
        one = self.attached(enable_storage_metrics=True)
        keys = keys_of(8)
        one.set(keys)
        one.set(keys[:2])
        one.exists(keys)
        one.get(keys[:5] + ["00" * 32])
        counts, size = one.larder.counts(), one.larder._pages.bytes
        expected = {"pages_stored": 8, "pages_duplicate": 2, "pages_store_failed": 0, "pages_loaded": 5, "lookups": 1,
                    "pages_load_failed": 1, "pages_found": 8, "bytes_stored": 8 * size, "bytes_loaded": 5 * size}  # fmt: skip
        self.assertEqual({name: counts[name] for name in expected}, expected)
        metrics = one.storage.get_stats()
        self.assertEqual((metrics.prefetch_pgs, metrics.backup_pgs), ([5], [8]))
        self.assertTrue(all(rate > 0 for rate in metrics.prefetch_bandwidth + metrics.backup_bandwidth))
        self.assertEqual(one.storage.get_stats().prefetch_pgs, [], "each call is told once")
        self.assertIsNone(self.attached().storage.get_stats())

    def test_counters_are_logged(self):
        clock = [0.0]
        counters = stats.Counters(60, lambda: clock[0])
        counters.add("lookups", 3)
        self.assertIsNone(counters.take_line())
        clock[0] = 61
        self.assertEqual(counters.take_line(), "lookups 3")
        clock[0] = 200
        self.assertIsNone(counters.take_line(), "nothing has changed")


class Disk(WithDaemon):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.FLAGS = ("--pool", "64MiB", "--disk", folder.name)
        super().setUp()

    def test_pages_that_are_on_disk_alone(self):
        one, keys = self.attached(pools.mha_pool(pages=200)), keys_of(200)
        self.assertEqual(one.set(keys), [True] * 200)
        client, session = kvlarder.connect(self.larderd.socket_dir), one.larder._keeper.get()
        digests = b"".join(name.digest for name in session.names.of(keys))
        selection = kvlarder.BlockSelection(digests=digests, variants=[session.variant.id])
        on_disk = {"owner": "test", "tier": kvlarder.Tier.DISK}
        until(lambda: all(status == storage.OK for _, status in client.pin(selection, **on_disk).blocks), "all are on disk")
        client.unpin(**on_disk)
        self.larderd.kill()
        self.restart()
        until(lambda: one.exists(keys) == 200, "they are found again")
        self.assertEqual(one.get(keys), [True] * 200)


class WithController(WithDaemon):
    """With SGLang's own controller and its threads."""

    def controller(self, pool=None, environment=None, **larder):
        extra = storage_config(larder={"socket_dir": self.larderd.socket_dir, **larder}).extra_config
        with mock.patch.dict(os.environ, environment or {}):
            one = Controller(pool or pools.mha_pool(pages=400, layers=1, heads=1), extra)
        self.addCleanup(one.detach)
        storage = getattr(one.storage, "_backend", one.storage)
        until(lambda: not storage.state, "the daemon serves")
        return one


class SglangsController(WithController):
    def test_backup_and_prefetch(self):
        for chained in (False, True):
            one, prefix = self.controller(chained=chained), [] if chained else None
            tokens = list(range(300 * PAGE))
            self.assertEqual(one.prefetch(key_of(tokens), prefix), (0, 0))
            self.assertEqual(one.backup(key_of(tokens[: 150 * PAGE]), prefix), 150)
            self.assertEqual(one.prefetch(key_of(tokens), prefix), (150, 150))
            self.assertEqual(one.backup(key_of(tokens), prefix), 300)
            self.assertEqual(one.prefetch(key_of(tokens + [5] * 40), prefix), (300, 300))
            self.assertEqual(one.prefetch(key_of([1] + tokens), prefix), (0, 0))
            one.storage.clear()

    def test_two_salts_and_two_adapters(self):
        one, tokens = self.controller(), list(range(10 * PAGE))
        keys = [key_of(tokens, *space) for space in itertools.product(("a", "b", None), ("1", "2", None))]
        for at, key in enumerate(keys):
            self.assertEqual([one.prefetch(other) for other in keys[at:]], [(0, 0)] * (len(keys) - at), "no hit across")
            self.assertEqual(one.backup(key), 10)
            self.assertEqual(one.prefetch(key), (10, 10))

    def test_a_daemon_that_is_killed(self):
        one, key = self.controller(), key_of(range(200 * PAGE))
        self.assertEqual(one.backup(key), 200)
        self.larderd.kill()
        self.assertEqual(one.prefetch(key), (0, 0))
        self.assertEqual(one.backup(key), 0)
        self.restart()
        until(lambda: one.backup(key) == 200, "it stores again")
        self.assertEqual(one.prefetch(key), (200, 200))

    def test_a_failed_attach(self):
        """SGLang closes the storage, and shows the sentence."""
        extra = storage_config(larder={"socket_dir": self.larderd.socket_dir}).extra_config
        with self.assertRaisesRegex(ValueError, "layout layer_first; use --hicache-mem-layout page_first"):
            Controller(pools.mha_pool("layer_first"), extra)
        with mock.patch.object(storage.LarderStorage, "on_host_pools_registered", side_effect=RuntimeError("no")):
            with self.assertRaisesRegex(RuntimeError, "no"):
                Controller(pools.mha_pool(), extra)
        self.assertFalse([thread for thread in threading.enumerate() if thread.name == "larder-session"])

    def test_detach_and_attach(self):
        one, key = self.controller(), key_of(range(10 * PAGE))
        self.assertEqual(one.backup(key), 10)
        one.detach()
        self.assertEqual(self.controller().prefetch(key), (10, 10))


class BadWeather(WithDaemon):
    PROBE_S = session_keeper.PROBE_DEADLINE_S

    def all_calls(self, one, keys):
        """Returns the answers of all calls, and how long the slowest took."""
        answers, slowest = [], 0.0
        for call in (one.exists, one.set, one.get):
            begun = time.monotonic()
            answers.append(call(keys))
            slowest = max(slowest, time.monotonic() - begun)
        return answers, slowest

    def test_no_daemon(self):
        with tempfile.TemporaryDirectory() as folder:
            one = Attached(folder, pools.mha_pool(), larder=PATIENT)
            self.addCleanup(one.storage.close)
            answers, slowest = self.all_calls(one, keys_of(3))
            self.assertEqual(answers, [0, [False] * 3, [False] * 3])
            self.assertLess(slowest, 0.5 if SCALE >= 1 else NO_WAIT_S)
            until(lambda: one.larder.counts()["attach_failures"] > 1, "it tries again")
            self.assertIn("larderd", one.larder.state)

    def test_a_daemon_that_comes_later(self):
        self.larderd.kill()
        one = Attached(self.larderd.socket_dir, pools.mha_pool())
        self.addCleanup(one.storage.close)
        self.assertEqual(one.exists(keys_of(3)), 0)
        self.restart()
        one.serving()
        self.assertEqual(one.set(keys_of(3)), [True] * 3)

    def test_a_daemon_that_was_killed_and_restarted(self):
        one, keys = self.attached(larder=PATIENT), keys_of(5)
        for _ in range(3):
            one.set(keys)
            one.exists(keys)
            self.larderd.kill()
            answers, slowest = self.all_calls(one, keys)
            self.assertEqual(answers, [0, [False] * 5, [False] * 5])
            self.assertLess(slowest, 1.5 if SCALE >= 1 else NO_WAIT_S)
            self.restart()
            until(lambda: one.set(keys) == [True] * 5, "it stores again")
            self.assertEqual(one.get(keys), [True] * 5)

    def test_a_daemon_that_stops_and_goes_on(self):
        one, keys = self.attached(larder={"exists_timeout_ms": 300, "get_timeout_ms": 400, "set_timeout_ms": 400}), keys_of(5)
        one.set(keys)
        for _ in range(3):
            until(lambda: one.exists(keys) == 5, "it answers")
            before = one.larder.counts()
            self.larderd.stop()
            answers, slowest = self.all_calls(one, keys_of(5, "others"))
            self.assertEqual(answers, [0, [False] * 5, [False] * 5])
            self.assertLess(slowest, 2 if SCALE >= 1 else 6)  # a short run shares its machine
            self.assertEqual(one.larder.counts()["calls_late"], before["calls_late"] + 1, "only the first call waits")
            until(lambda: "in time" in one.larder.state, "the keeper says so")
            begun = time.monotonic()
            for _ in range(100):
                self.assertEqual(one.exists(keys), 0)
            self.assertLess(time.monotonic() - begun, 0.3 if SCALE >= 1 else NO_WAIT_S, "it answers at once")
            self.assertEqual(one.larder.counts()["calls_late"], before["calls_late"] + 1, "it waits no more")
            self.larderd.go_on()
            one.serving()

    def test_close_while_the_daemon_hangs(self):
        one = self.attached()
        one.set(keys_of(5))
        one.exists(keys_of(5))
        self.larderd.stop()
        begun = time.monotonic()
        one.storage.close()
        one.storage.close()
        self.assertLess(time.monotonic() - begun, 8)
        self.assertEqual(self.all_calls(one, keys_of(2))[0], [0, [False] * 2, [False] * 2])
        self.larderd.go_on()

    def test_no_session_is_left_by_close(self):
        client = kvlarder.connect(self.larderd.socket_dir)
        for _ in range(3):
            one = self.attached()
            one.set(keys_of(5))
            one.exists(keys_of(5))
            one.storage.close()
        until(lambda: not any(engine.sessions for engine in client.instances()), "all sessions have ended")
        self.assertFalse([thread for thread in threading.enumerate() if thread.name == "larder-session"])

    def test_keys_that_are_none(self):
        one, keys = self.attached(), keys_of(4)
        mixed = [keys[0], "not hex", keys[1], None]
        self.assertEqual(one.set(mixed), [True, False, True, False])
        self.assertEqual(one.exists(mixed), 1)
        self.assertEqual(one.get(mixed), [True, False, True, False])
        self.assertEqual(one.larder.counts()["keys_refused"], 6)
        self.assertEqual(self.all_calls(one, ["zz", ""])[0], [0, [False] * 2, [False] * 2])
        self.assertEqual(self.all_calls(one, [])[0], [0, [], []])

    def test_slots_that_are_no_pages(self):
        one, keys = self.attached(), keys_of(2)
        one.set(keys)
        good = pools.slots(one.pool, [0, 1])
        for slots in (None, good[:-1], good[:PAGE], good + 1, good + 64 * PAGE, -good, good.flip(0)):
            self.assertEqual(one.storage.batch_get_v1(keys, slots), [False] * 2)
            self.assertEqual(one.storage.batch_set_v1(keys_of(2, "x"), slots), [False] * 2)
        self.assertEqual(one.exists(keys_of(2, "x")), 0)
        one.pool.destroy()
        self.assertEqual(one.storage.batch_get_v1(keys, good), [False] * 2)

    def test_pools_registered_twice(self):
        one = self.attached()
        keeper = one.larder._keeper
        one.storage.register_mem_pool_host(one.pool)
        one.storage.register_mem_host_pool_v2(one.pool, sglang.PoolName.KV)
        one.storage.on_host_pools_registered()
        self.assertIs(one.larder._keeper, keeper)
        self.assertEqual(one.set(keys_of(2)), [True] * 2)
        with self.assertRaisesRegex(Refused, "two host pools"):
            one.storage.register_mem_pool_host(pools.mha_pool())
        self.assertEqual(one.get(keys_of(2)), [True] * 2)

    def test_a_pool_that_comes_late_ends_it(self):
        one, keys = self.attached(), keys_of(2)
        one.set(keys)
        one.storage.register_mem_host_pool_v2(object(), sglang.PoolName.DRAFT)
        self.assertEqual(self.all_calls(one, keys)[0], [0, [False] * 2, [False] * 2])
        self.assertIn("needs the pools draft", one.larder.state)

    def test_v2_transfers_are_answered(self):
        one, keys = self.attached(), keys_of(3)
        one.set(keys)
        transfer = sglang.PoolTransfer(name=sglang.PoolName.MAMBA, keys=keys)
        self.assertEqual(one.storage.batch_exists_v2(keys, [transfer]).kv_hit_pages, 0)
        self.assertEqual(one.storage.batch_exists_v2(keys, []).kv_hit_pages, 3)
        self.assertEqual(one.storage.batch_get_v2([transfer]), {sglang.PoolName.MAMBA: [False] * 3})
        self.assertEqual(one.storage.batch_set_v2([transfer]), {sglang.PoolName.MAMBA: [False] * 3})

    def test_an_unexpected_error_ends_in_the_log(self):
        one = self.attached()
        with mock.patch.object(one.larder._pages, "pieces", side_effect=OSError("out of weather")):
            with self.assertLogs("sglang.larder", "WARNING") as logged:
                for _ in range(3):
                    self.assertEqual(one.set(keys_of(2)), [False] * 2)
        text = (
            "Larder answered batch_set_v1 with nothing, because it failed: OSError: out of weather; further such failures "
            "are counted (calls_failed), not logged"
        )
        self.assertEqual([record.getMessage() for record in logged.records], [text])
        self.assertEqual(one.larder.counts()["calls_failed"], 3)

    def test_failures_of_one_kind_do_not_silence_others(self):
        one, keys = self.attached(), keys_of(2)
        with self.assertLogs("sglang.larder", "WARNING") as logged:
            for number in range(200):
                with mock.patch.object(one.larder._pages, "pieces", side_effect=ValueError(f"slot {number}")):
                    self.assertEqual(one.set(keys), [False] * 2)
            with mock.patch.object(one.larder._pages, "pieces", side_effect=OSError("another")):
                self.assertEqual(one.set(keys), [False] * 2)
            with mock.patch.object(one.larder._pages, "pieces", side_effect=ValueError("slot 0")):
                self.assertEqual(one.storage.batch_get_v1(keys, None), [False] * 2)
        texts = [record.getMessage() for record in logged.records]
        self.assertEqual(len(texts), 3, texts)
        for text, part in zip(texts, ("batch_set_v1.*slot 0", "batch_set_v1.*another", "batch_get_v1.*slot 0")):
            self.assertRegex(text, part)

    def test_promises_are_bounded(self):
        one = self.attached(larder={"promises_max": 4, "promise_life_s": 1})
        keys = keys_of(30)
        one.set(keys)
        for at in range(30):
            self.assertEqual(one.exists(keys[at:]), 30 - at)
            self.assertLessEqual(len(one.larder._promises), 4)
        kept = list(one.larder._promises._kept.values())
        until(lambda: not any(promise.valid for promise, _ in kept), "their life is over")
        self.assertEqual(one.exists(keys), 30)
        self.assertEqual(len(one.larder._promises), 1)

    def test_no_room_for_a_promise(self):
        class Full(RuntimeError):
            code = "RESOURCE_EXHAUSTED"

        one = self.attached()
        keys = keys_of(3)
        one.set(keys)
        real, calls = one.larder._keeper.get().session.promise, []

        def full(times):
            def promise(*args, **kwargs):
                calls.append(None)
                if len(calls) <= times:
                    raise Full("no room")
                return real(*args, **kwargs)

            return types.SimpleNamespace(promise=promise)

        live = one.larder._keeper.get()
        for times, found in ((1, 3), (2, 0)):
            calls.clear()
            seen = session_keeper.Live(full(times), live.variant, live.names)
            with mock.patch.object(one.larder._keeper, "get", lambda seen=seen: seen):
                self.assertEqual(one.exists(keys), found)
        self.assertEqual(one.larder.counts()["promises_refused"], 1)


class Promises(unittest.TestCase):
    def test_they_are_let_go_once_all_was_read(self):
        released = []
        kept = promises.Promises(2)

        def promise(number):
            return types.SimpleNamespace(id=number, valid=True, release=lambda: released.append(number))

        kept.keep(promise(1), [b"a", b"b"])
        kept.keep(promise(2), [b"b", b"c"])
        self.assertEqual([kept.of(digest) for digest in (b"a", b"b", b"c", b"d")], [1, 2, 2, 0])
        kept.read([b"b", b"c"])
        self.assertEqual((released, kept.of(b"b"), kept.of(b"a")), ([2], 1, 1), "who asked for b first has yet to read it")
        kept.read([b"b", b"a", b"d"])
        self.assertEqual(released, [2, 1])
        kept.keep(promise(1), [b"a"])
        kept.keep(promise(3), [b"c"])
        kept.keep(promise(4), [b"c"])
        self.assertEqual((released, len(kept)), ([2, 1, 1], 2), "the oldest is let go")
        kept.let_all_go()
        self.assertEqual((sorted(released), len(kept)), ([1, 1, 2, 3, 4], 0))


class Model:
    """Which keys are stored, as far as the answers tell."""

    def __init__(self):
        self.there, self.perhaps = set(), set()

    def stored(self, keys):
        self.there.update(keys)
        self.perhaps.difference_update(keys)

    def unanswered(self, keys):
        """They were to be stored, and it is not known whether they are."""
        self.perhaps.update(set(keys) - self.there)

    def agrees(self, key, found):
        if key in self.perhaps:
            self.perhaps.discard(key)
            if found:
                self.there.add(key)
        return found == (key in self.there)


class Storm(WithDaemon):
    """Random calls and weather, against a model of what is stored.  All bytes of all pages are checked."""

    FLAGS = ("--pool", "128MiB")
    KEYS, OPERATIONS = 40, 20_000
    WEATHER = {"clear": 3, "kill": 0.6, "stop": 0.4}
    PROBE_S = session_keeper.PROBE_DEADLINE_S

    def setUp(self):
        super().setUp()
        self.one = self.attached(larder={"exists_timeout_ms": 300, "get_timeout_ms": 300, "set_timeout_ms": 300})
        self.keys, self.model, self.missed = keys_of(self.KEYS), Model(), 0

    def test_against_a_model(self):
        print(f"LARDER_TEST_SEED={SEED}")
        rng, weights = random.Random(SEED), {"set": 30, "get": 30, "exists": 30, **self.WEATHER}
        done, busy = dict.fromkeys(weights, 0), 0
        operations = max(2_000, int(self.OPERATIONS * SCALE))
        for _ in range(operations):
            what = rng.choices(list(weights), list(weights.values()))[0]
            done[what] += 1
            first = rng.randrange(self.KEYS)
            length = rng.randint(1, 16)
            some = self.keys[first : first + length] if rng.random() < 0.7 else rng.sample(self.keys, length)
            busy += getattr(self, what)(some, rng.sample(range(64), len(some))) is False
        print(f"{done}; {busy} calls got no answer because the machine was busy; {self.one.larder.counts()}")
        self.assertTrue(all(done.values()), done)
        self.assertLess(busy, operations / 50)
        self.assertEqual(self.one.larder.counts()["calls_failed"], 0)

    def answered(self):
        """Returns whether all calls got an answer since it was asked last.  If not, waits until the daemon serves."""
        counts = self.one.larder.counts()
        before, self.missed = self.missed, sum(counts[name] for name in ("calls_late", "calls_lost", "calls_unserved"))
        if self.missed != before:
            self.one.serving()
        return self.missed == before

    def set(self, some, pages):
        answer = self.one.set(some, pages)
        if not self.answered():
            self.model.unanswered(some)
            return False
        self.assertEqual(answer, [True] * len(some))
        self.model.stored(some)

    def get(self, some, pages):
        answer = self.one.get(some, pages)
        if not self.answered():
            return False
        for key, found in zip(some, answer):
            self.assertTrue(self.model.agrees(key, found), (key, found))

    def exists(self, some, pages):
        found = self.one.exists(some)
        if not self.answered():
            return False
        for key, there in zip(some, [True] * found + [False]):
            self.assertTrue(self.model.agrees(key, there), (key, there))

    def clear(self, some, pages):
        self.one.storage.clear()
        self.model = Model()

    def kill(self, some, pages):
        self.larderd.kill()
        self.unserved(some, pages)
        self.restart()
        until(lambda: not self.one.larder.state and self.one.set(self.keys[:1]) == [True], "it serves again")
        self.model = Model()
        self.model.stored(self.keys[:1])
        self.answered()

    def stop(self, some, pages):
        self.larderd.stop()
        self.unserved(some, pages)
        self.model.unanswered(some)
        self.larderd.go_on()
        self.answered()

    def unserved(self, some, pages):
        self.assertEqual(self.one.set(some, pages), [False] * len(some))
        self.assertEqual(self.one.get(some, pages), [False] * len(some))
        self.assertEqual(self.one.exists(some), 0)


class Evictions(WithDaemon):
    """A pool that is much smaller than what is stored: what was found is loaded all the same."""

    FLAGS = ("--pool", "32MiB")
    ROUNDS = 4_000

    def test_what_was_found_is_loaded(self):
        one = self.attached(pools.mha_pool(heads=8, dim=32), larder=PATIENT)  # a page has 32 KiB
        keys, raised, found_at_all = keys_of(3_000), [], collections.Counter()
        rounds = max(100, int(self.ROUNDS * SCALE))

        def run(writes, seed, pages):
            rng = random.Random(seed)
            try:
                for _ in range(rounds):
                    first = rng.randrange(len(keys) // 16) * 16
                    some = keys[first : first + 16]
                    if writes:
                        one.set(some, pages)
                    elif found := one.exists(some):
                        found_at_all[found] += 1
                        if one.get(some[:found], pages[:found]) != [True] * found:
                            raise AssertionError(f"{found} pages were found, and not all were loaded")
            except BaseException as error:
                raised.append(error)

        threads = [
            threading.Thread(target=run, args=(at % 2 == 0, SEED + at, list(range(16 * at, 16 * at + 16)))) for at in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(f"LARDER_TEST_SEED={SEED}: pages found: times {dict(found_at_all)}; {one.larder.counts()}")
        self.assertEqual(raised, [])
        self.assertTrue(found_at_all)
        counts = one.larder.counts()
        self.assertEqual((counts["calls_failed"], counts["calls_late"], counts["pages_load_failed"]), (0, 0, 0))


class Faults(WithController):
    """SGLang's own fault injector: 3 of 10 calls fail, and each takes up to 50 ms longer."""

    ENVIRONMENT = {"SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY": "0.05", "SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE": "0.3"}
    ROUNDS = 400

    def test_threads(self):
        with mock.patch.dict(os.environ, self.ENVIRONMENT):
            one = self.attached(pools.mha_pool(pages=64))
        self.assertIsInstance(one.storage, sglang.HiCacheStorageFailureInjector)
        keys, stored, lock = keys_of(48), set(), threading.Lock()
        raised, done = [], {"set": [0, 0], "get": [0, 0], "exists": [0, 0]}
        rounds = max(20, int(self.ROUNDS * SCALE))

        def run(what, seed, pages):
            rng = random.Random(seed)
            try:
                for _ in range(rounds):
                    first = rng.randrange(len(keys))
                    some = keys[first : first + len(pages)]
                    mine = pages[: len(some)]
                    if what == "set":
                        answer = one.set(some, mine)
                        with lock:
                            stored.update(key for key, ok in zip(some, answer) if ok)
                        good = all(answer)
                    elif what == "get":
                        good = all(one.get(some, mine))
                    else:
                        with lock:
                            least = len(list(itertools.takewhile(lambda key: key in stored, some)))
                        found = one.exists(some)
                        if 0 < found < least:
                            raise AssertionError(f"{found} consecutive pages, and {least} are stored")
                        good = found > 0
                    with lock:
                        done[what][good] += 1
            except BaseException as error:
                raised.append(error)

        threads = [
            threading.Thread(target=run, args=(what, seed, list(range(8 * at, 8 * at + 8))))
            for at, (what, seed) in enumerate(itertools.product(done, (SEED, SEED + 1)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(f"LARDER_TEST_SEED={SEED}: [failed, good] calls {done}")
        self.assertEqual(raised, [])
        self.assertTrue(all(failed and good for failed, good in done.values()), done)
        self.assertEqual(one.larder.counts()["calls_failed"], 0)

    def test_sglangs_controller(self):
        """What SGLang takes for loaded is right."""
        one, ends = self.controller(environment=self.ENVIRONMENT), collections.Counter()
        for round_ in range(max(10, int(100 * SCALE))):
            key = key_of(range(round_ * 10_000, round_ * 10_000 + 300 * PAGE))
            stored = one.backup(key)
            found, loaded = one.prefetch(key)
            self.assertIn(stored, (0, 128, 256, 300))
            self.assertLessEqual(loaded, found)
            self.assertLessEqual(found, stored)
            ends[stored, found, loaded] += 1
        print(f"(pages stored, found, loaded): times {dict(ends)}")
        self.assertGreater(len(ends), 1)

    def test_salts_and_adapters_under_sglangs_controller(self):
        one, tokens = self.controller(environment=self.ENVIRONMENT), list(range(10 * PAGE))
        keys = [key_of(tokens, *space) for space in itertools.product(("a", "b"), ("1", "2"))]
        for at, key in enumerate(keys):
            self.assertEqual([one.prefetch(other) for other in keys[at:] * 3], [(0, 0)] * 3 * (len(keys) - at))
            until(lambda key=key: one.backup(key) == 10, "it is stored")
            until(lambda key=key: one.prefetch(key) == (10, 10), "it is loaded")

    def test_salts_and_adapters(self):
        with mock.patch.dict(os.environ, self.ENVIRONMENT):
            one = self.attached()
        tokens = [[7] * PAGE] * 4
        chains = [
            pools.chain_of_keys(sglang.storage_namespace_seed(lora, salt), tokens)
            for lora, salt in itertools.product(("a", "b"), ("1", "2"))
        ]
        for at, keys in enumerate(chains):
            for later in chains[at:]:
                self.assertEqual([one.exists(later) for _ in range(5)], [0] * 5)
                self.assertFalse(any(one.get(later)))
            until(lambda keys=keys: all(one.set(keys)), "it is stored")
            until(lambda keys=keys: one.exists(keys) == 4, "it is found")


if __name__ == "__main__":
    if sys.argv[2:3] == ["--write"]:
        DOCUMENT.write_text(documented(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
        sys.exit()
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
