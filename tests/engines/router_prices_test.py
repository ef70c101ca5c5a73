#!/usr/bin/env python3
"""What the router knows before it sends a request: prompts, what a daemon has of them, prices, rates, options.

router_prices_test.py LARDERD           runs the tests
router_prices_test.py LARDERD --write   writes the table of options of docs/engines/router.md
"""

import array
import asyncio
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import types
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "client", "python"))

import kvlarder  # noqa: E402
from kvlarder import weights  # noqa: E402
from kvlarder.router import directory, options, prices, prompt, rates  # noqa: E402
from kvlarder.vllm import names  # noqa: E402
from larderd import Larderd  # noqa: E402

DEVICE, HOST, DISK = kvlarder.Tier.DEVICE, kvlarder.Tier.HOST, kvlarder.Tier.DISK
PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "engines" / "router.md"


def hit(tier, *ranges, load_s=0.0):
    return types.SimpleNamespace(
        tier=tier, ranges=[types.SimpleNamespace(begin=begin, end=end) for begin, end in ranges], load_s=load_s
    )


class Coverage(unittest.TestCase):
    def test_each_token_comes_from_the_fastest_tier(self):
        tiers = [hit(DEVICE, (0, 128)), hit(HOST, (0, 256), (512, 640), load_s=3.0), hit(DISK, (0, 640), load_s=10.0)]
        found = prices.coverage_of(tiers, 1_000)
        self.assertEqual((found.device, found.host, found.disk), (128, 256, 256))
        self.assertAlmostEqual(found.load_s, 3.0 * 256 / 384 + 10.0 * 256 / 640)

    def test_it_ends_at_the_first_hole(self):
        self.assertEqual(prices.coverage_of([hit(HOST, (128, 256))], 1_000), prices.NOTHING)
        found = prices.coverage_of([hit(HOST, (0, 128), (256, 384), load_s=1.0)], 1_000)
        self.assertEqual((found.tokens, found.load_s), (128, 0.5))

    def test_the_last_token_is_computed(self):
        self.assertEqual(prices.coverage_of([hit(HOST, (0, 128))], 128).tokens, 127)
        self.assertEqual(prices.coverage_of([hit(HOST, (0, 128))], 1), prices.NOTHING)

    def test_what_has_no_price_is_not_used(self):
        self.assertEqual(prices.coverage_of([hit(kvlarder.Tier.REMOTE, (0, 128))], 1_000), prices.NOTHING)
        self.assertEqual(prices.coverage_of([], 1_000), prices.NOTHING)


def offer(queue_s, tokens=0, turn=0, device=0):
    """Of a prompt of 1,000 tokens, of which `device` are in the server's device memory and the others in the pool."""
    covered = prices.Coverage(device=device, host=999 - device)
    return types.SimpleNamespace(price=prices.Price(covered, 1, 0.0, queue_s), tokens=tokens, turn=turn)


class Choice(unittest.TestCase):
    def test_reasons(self):
        dear, near, least = offer(2.0), offer(1.05), offer(1.0, tokens=5)
        for offers, sticky, close, expected in (
            ([dear], None, 0.1, (dear, "only")),
            ([dear, least], dear, 0.1, (least, "cheapest")),
            ([dear, near, least], near, 0.1, (near, "sticky")),
            ([dear, near, least], dear, 0.1, (near, "even")),
            ([dear, near, least], None, 0.1, (near, "even")),
            ([dear, near, least], near, 0.0, (least, "cheapest")),
        ):
            self.assertEqual(prices.cheapest(offers, sticky, close), expected)

    def test_equal_servers_take_turns(self):
        first, second = offer(1.0, turn=7), offer(1.0, turn=3)
        self.assertIs(prices.cheapest([first, second], None, 0.1)[0], second)

    def test_milliseconds_are_close_whatever_they_are_in_parts(self):
        near = offer(0.004)
        self.assertEqual(prices.cheapest([offer(0.0, tokens=1), near], near, 0.1), (near, "sticky"))

    def test_what_a_server_has_itself_decides_among_close_prices(self):
        has, last, idle = offer(1.05, tokens=5, device=800), offer(1.0, tokens=2, device=640), offer(1.0)
        self.assertEqual(prices.cheapest([has, last, idle], last, 0.1), (has, "device"))
        self.assertEqual(prices.cheapest([has, last, idle], last, 0.0), (last, "device"), "the dearer one is not close")
        as_much = offer(1.0, device=760)  # they differ by less than a part of the prompt
        self.assertEqual(prices.cheapest([has, as_much, idle], as_much, 0.1), (as_much, "sticky"))
        self.assertEqual(prices.cheapest([has, as_much, idle], idle, 0.1), (as_much, "even"))

    def test_the_time_of_the_shortest_answers_is_close(self):
        near, least = offer(1.25, device=800), offer(1.0)
        self.assertEqual(prices.cheapest([near, least], None, 0.0, 0.3), (near, "device"))
        self.assertEqual(prices.cheapest([near, least], None, 0.0, 0.2), (least, "cheapest"))
        self.assertEqual(prices.cheapest([offer(1.6, device=800), least], None, 0.0, 9.0), (least, "cheapest"), "at most 0.5 s")


class Affinity(unittest.TestCase):
    def test_the_longest_prefix_decides(self):
        known, tokens = prices.Affinity(), array.array("I", range(4_096))
        known.remember(known.keys(b"m", tokens[:300]), "a")
        known.remember(known.keys(b"m", tokens), "b")
        other = tokens[:200] + array.array("I", [1]) * 2_000
        known.remember(known.keys(b"m", other), "c")
        self.assertEqual(known.server(known.keys(b"m", tokens)), "b")
        self.assertEqual(known.server(known.keys(b"m", other)), "c")
        self.assertEqual(known.server(known.keys(b"m", tokens[:150])), "c")  # the last one
        self.assertIsNone(known.server(known.keys(b"other", tokens)))
        self.assertIsNone(known.server(known.keys(b"m", tokens[:100])))

    def test_keys_are_of_prefixes(self):
        long = array.array("I", range(200_000))
        keys = prices.Affinity.keys(b"m", long)
        self.assertEqual(len(keys), len(prices.Affinity.LENGTHS))
        self.assertEqual(prices.Affinity.keys(b"m", long[:1_500]), keys[:8])

    def test_it_is_bounded(self):
        known = prices.Affinity(capacity=10)
        for first in range(100):
            known.remember(known.keys(b"m", array.array("I", range(first, first + 640))), first)
        self.assertEqual(len(known), 10)


class Rates(unittest.TestCase):
    def setUp(self):
        self.now = 0.0

    def prefill(self, guess=1_000.0, peers=None):
        return rates.Prefill(guess, 0.02, [] if peers is None else peers, clock=lambda: self.now)

    def test_it_learns_and_outliers_change_nothing(self):
        server = self.prefill(100.0)
        self.assertAlmostEqual(server.seconds(1_000), 10.0)
        for seconds in (60.0, 0.1, 0.1, 60.0, 0.1, 1e-9, 0.1, 0.0):
            server.observe(1_000, seconds)
        self.assertAlmostEqual(server.rate, 10_000.0)

    def test_one_sample_is_none(self):
        server = self.prefill()
        for _ in range(rates.SAMPLES_LEAST - 1):
            server.observe(1_000, 60.0)
            self.assertEqual(server.rate, 1_000.0)

    def test_a_new_server_is_taken_for_one_like_the_others(self):
        peers = []
        known, new, other = (self.prefill(1_000.0, peers) for _ in range(3))
        for _ in range(rates.SAMPLES_LEAST):
            known.observe(1_000, 0.1)
        self.assertAlmostEqual(new.rate, 10_000.0)
        for _ in range(rates.SAMPLES_LEAST):
            new.observe(1_000, 0.5)
        self.assertAlmostEqual(new.rate, 2_000.0)
        self.assertAlmostEqual(other.rate, 6_000.0)

    def test_what_was_long_ago_is_forgotten(self):
        server = self.prefill()
        for _ in range(rates.SAMPLES):
            server.observe(1_000, 60.0)
        self.assertLess(server.rate, 20.0)
        self.now += rates.AGE_MOST_S / 2
        for _ in range(5):
            server.observe(1_000, 0.1)
        self.assertLess(server.rate, 20.0)
        self.now += rates.AGE_MOST_S / 2 + 1
        self.assertAlmostEqual(server.rate, 10_000.0)
        self.now += rates.AGE_MOST_S
        self.assertEqual(server.rate, 1_000.0)

    def test_short_prompts_tell_what_every_answer_takes(self):
        server = self.prefill()
        for seconds in (0.05, 0.05, 9.0):
            server.observe(16, seconds)
        self.assertAlmostEqual(server.fixed_s, 0.05)
        self.assertEqual(server.rate, 1_000.0)
        for _ in range(3):
            server.observe(1_000, 0.15)
        self.assertAlmostEqual(server.seconds(2_000), 0.25)

    def test_a_server_that_was_busy_is_not_taken_for_a_slow_one(self):
        server = self.prefill()
        for seconds in (0.05, 0.7, 0.8, 0.6, 0.9):
            server.observe(16, seconds)
        self.assertLessEqual(server.fixed_s, 0.6)
        server.observe(16, 0.05)
        self.assertAlmostEqual(server.fixed_s, 0.05)

    def test_running_requests_cost_what_short_prompts_take_longer_beside_them(self):
        peers = []
        server, other = (self.prefill(1_000.0, peers) for _ in range(2))
        self.assertAlmostEqual(server.running_s(3, 5_000), 0.1)
        for _ in range(2):
            server.observe(16, 0.05)
        for seconds, running in ((0.05, 0), (0.25, 2), (0.35, 3), (9.0, 1), (0.01, 1), (0.15, 1)):
            server.observe(16, seconds, running)
        self.assertAlmostEqual(server.fixed_s, 0.05)
        self.assertAlmostEqual(server.running_s(3, 5_000), 0.3)
        self.assertAlmostEqual(other.running_s(1, 5_000), 0.1)
        self.assertEqual(server.running_s(0, 0), 0.0)

    def test_running_requests_cost_what_is_guessed_while_it_is_not_known_what_each_answer_takes(self):
        server = self.prefill(1_000.0)
        for _ in range(2):
            server.observe(16, 9.0, 1)
        self.assertAlmostEqual(server.running_s(1, 1_000), 0.02)

    def test_an_answer_that_is_sooner_than_any_is_not_endlessly_fast(self):
        server = self.prefill()
        for seconds, tokens in ((0.5, 16), (0.4, 1_000)):
            for _ in range(3):
                server.observe(tokens, seconds)
        self.assertAlmostEqual(server.rate, 1_000 / 0.2)

    def test_prompts_are_added_up_until_they_tell_something(self):
        server = self.prefill()
        for _ in range(3):
            server.observe(256, 0.1)
            server.observe(256, 0.3)
        self.assertAlmostEqual(server.rate, 1_280.0)
        server.observe(256, 50.0)
        server.forget()
        server.observe(512, 0.4)
        self.assertAlmostEqual(server.rate, 1_280.0)

    def test_it_stays_in_its_bounds(self):
        server = self.prefill()
        for _ in range(rates.SAMPLES):
            server.observe(1 << 20, 0.0)
        self.assertEqual(server.rate, rates.RATE_MOST)
        for _ in range(rates.SAMPLES):
            server.observe(1_000, 1e9)
        self.assertEqual(server.rate, rates.RATE_LEAST)


def parsed(path="/v1/completions", **fields):
    return prompt.of(path, json.dumps(fields).encode())


class Prompts(unittest.TestCase):
    def test_ids_are_taken_as_they_are(self):
        for given in ([5, 6, 7], [[5, 6, 7]]):
            found = parsed(model="m", prompt=given, stream=True, cache_salt="s")
            self.assertEqual((list(found.tokens), found.count, found.question), ([5, 6, 7], 3, None))
            self.assertTrue(found.counted)
            self.assertEqual((found.model, found.salt, found.streams), ("m", "s", True))

    def test_only_the_ids_that_can_be_stored_are_kept(self):
        found = parsed(prompt=[1] * (kvlarder.LOOKUP_TOKENS_MAX + 5))
        self.assertEqual((len(found.tokens), found.count), (kvlarder.LOOKUP_TOKENS_MAX, kvlarder.LOOKUP_TOKENS_MAX + 5))

    def test_a_text_is_asked_for(self):
        for given in ("hello", ["hello"]):
            question = json.loads(parsed(model="m", prompt=given, add_special_tokens=False).question)
            self.assertEqual(question, {"model": "m", "prompt": "hello", "add_special_tokens": False})

    def test_a_chat_is_asked_for_with_all_that_changes_its_tokens(self):
        messages = [{"role": "user", "content": [{"type": "text", "text": "x"}]}, {"role": "assistant", "content": None}]
        more = {"tools": [{"type": "function"}], "add_generation_prompt": False, "chat_template_kwargs": {"k": 1}}
        found = parsed(prompt.CHAT, messages=messages, temperature=0.5, reasoning_effort="low", **more)
        kwargs = {"k": 1, "reasoning_effort": "low"}
        self.assertEqual(json.loads(found.question), {"messages": messages, **more, "chat_template_kwargs": kwargs})

    def test_what_larder_does_not_have_is_not_asked_for(self):
        image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
        for path, fields in (
            (prompt.CHAT, {"messages": image}),
            (prompt.CHAT, {"messages": "x"}),
            (prompt.CHAT, {"messages": ["x"]}),
            (prompt.CHAT, {}),
            (prompt.COMPLETIONS, {}),
            (prompt.COMPLETIONS, {"prompt": ["a", "b"]}),
            (prompt.COMPLETIONS, {"prompt": [[1], [2]]}),
            (prompt.COMPLETIONS, {"prompt": [-1]}),
            (prompt.COMPLETIONS, {"prompt": [1 << 32]}),
            (prompt.COMPLETIONS, {"prompt": [1.5]}),
            (prompt.COMPLETIONS, {"prompt": "x", "truncate_prompt_tokens": 5}),
            (prompt.COMPLETIONS, {"prompt": "x", "prompt_logprobs": 1}),
            (prompt.COMPLETIONS, {"prompt": "x", "cache_salt": 7}),
            (prompt.COMPLETIONS, {"prompt": "x", "cache_salt": "\ud800"}),
            (prompt.COMPLETIONS, {"prompt": {"a": 1}}),
        ):
            found = parsed(path, **fields)
            self.assertEqual((found.tokens, found.question), (None, None), fields)

    def test_tokens_that_are_not_known_are_guessed_by_texts_alone(self):
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
        text = {"type": "text", "text": "x" * 400}
        for path, fields, count in (
            (prompt.CHAT, {"messages": [{"role": "user", "content": [image, text]}, {"content": "x" * 40}]}, 110),
            (prompt.CHAT, {"messages": [{"content": [image]}, {"content": None}, "x", {"content": {"text": 5}}]}, 0),
            (prompt.CHAT, {"messages": [{"content": "x" * 400}], "tools": 9 * [image]}, 100),
            (prompt.COMPLETIONS, {"prompt": "\u00e9" * 400}, 100),
            (prompt.COMPLETIONS, {"prompt": ["x" * 400, "y" * 400]}, 200),
            (prompt.COMPLETIONS, {"prompt": [[1, 2, 3], [4]]}, 4),
            (prompt.COMPLETIONS, {"prompt": "x" * 4_000_000}, prompt.GUESS_MOST),
            (prompt.COMPLETIONS, {"prompt_embeds": "A" * 1_000_000}, 0),
            (prompt.COMPLETIONS, {"prompt": [-1] * 4_000}, 0),
        ):
            found = parsed(path, **fields)
            self.assertEqual((found.count, found.counted), (count, False))

    def test_halves_of_characters(self):
        found = parsed(model="\ud800", prompt="a\ud800")
        self.assertEqual((found.model, json.loads(found.question)["prompt"]), ("", "a\ud800"))

    def test_what_is_no_json_object_is_refused(self):
        for body in (b"", b"{", b"[1]", b'"x"', b"\xff\xfe\xfa", b"[" * 200_000, b"1" * 10_000):
            with self.assertRaises(prompt.NotJson):
                prompt.of(prompt.COMPLETIONS, body)

    def test_the_first_token_shows_only_in_streams_and_single_tokens(self):
        self.assertFalse(parsed(prompt=[1]).streams)
        self.assertTrue(parsed(prompt=[1], max_tokens=1).streams)


class Flags(unittest.TestCase):
    def error_of(self, *arguments):
        text = io.StringIO()
        with contextlib.redirect_stderr(text), self.assertRaises(SystemExit):
            options.parse(arguments)
        return text.getvalue()

    def test_servers(self):
        found = options.parse(["--server", "a=http://h:1/", "--server", "b=https://h:2/base"])
        self.assertEqual([(one.engine_id, one.url, one.name) for one in found.servers],
                         [("a", "http://h:1", "h:1"), ("b", "https://h:2/base", "h:2/base")])  # fmt: skip
        self.assertEqual(found.host_and_port, ("127.0.0.1", 8100))

    def test_what_is_wrong_is_refused_with_what_is_right(self):
        server = ("--server", "a=http://h:1")
        for arguments, text in (
            ((), "the following arguments are required: --server"),
            (("--server", "http://h:1"), "is not ENGINE_ID=URL"),
            (("--server", "a=h:1"), "is not ENGINE_ID=URL"),
            (("--server", "=http://h:1"), "is not ENGINE_ID=URL"),
            (("--server", "a=http://me:secret@h:1"), "must have no user name or password"),
            (("--server", "a=http://me@h:1"), "must have no user name or password"),
            ((*server, *server), "two servers have the same URL"),
            ((*server, "--listen", "8100"), "'8100' is not HOST:PORT"),
            ((*server, "--queue", "-1"), "it must be 0 to 100000, not -1"),
            ((*server, "--queue", "x"), "'x' is no whole number"),
            ((*server, "--close", "nan"), "it must be"),
            ((*server, "--policy", "best"), "invalid choice: 'best'"),
        ):
            error = self.error_of(*arguments)
            self.assertIn(text, error)
            self.assertNotIn("secret", error)

    def test_the_key_is_not_in_the_command_line(self):
        with mock.patch.dict(os.environ, {options.API_KEY: "k"}):
            self.assertEqual(options.api_key(), {"Authorization": "Bearer k"})
        with mock.patch.dict(os.environ, {options.API_KEY: ""}):
            self.assertEqual(options.api_key(), {})

    def test_without_the_libraries_it_says_what_to_install(self):
        program = (
            "import sys; sys.modules['aiohttp'] = None\n"
            "from kvlarder.router.__main__ import main; sys.exit(main(['--server', 'a=http://h:1']))\n"
        )
        ended = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(ended.returncode, 1)
        self.assertRegex(ended.stderr, "^the router needs Python 3.11, aiohttp and .*pip install 'kvlarder.router.'")


def option_rows():
    yield from ("| flag | default | values | meaning |", "|---|---|---|---|")
    for field in options.FLAGS:
        limits, default = field.metadata, field.default
        shown = "empty" if default == "" else f"`{default}`"
        values = f"{limits['least']} to {limits['most']}" if limits["least"] is not None else "text"
        values = ", ".join(f"`{one}`" for one in options.POLICIES) if field.name == "policy" else values
        yield f"| `{options.flag_of(field.name)}` | {shown} | {values} | {limits['doc']} |"


def page_with_options(text):
    begin, end = "<!-- options: made by tests/engines/router_prices_test.py --write -->\n", "<!-- options end -->"
    before, rest = text.split(begin)
    return before + begin + "\n".join(option_rows()) + "\n" + end + rest.split(end)[1]


class Docs(unittest.TestCase):
    def test_the_table_is_up_to_date(self):
        text = PAGE.read_text(encoding="utf-8")
        self.assertEqual(text, page_with_options(text), "run router_prices_test.py LARDERD --write")


class Contents(unittest.TestCase):
    def test_generations_are_those_of_the_connector(self):
        contents = names.ContentNames("m", "r2:abc")
        self.assertEqual(directory.base_of(contents.of(None).revision), ("r2:abc", 0))
        for count in (1, 2):
            contents.reset()
            self.assertEqual(directory.base_of(contents.of(None).revision), ("r2:abc", count))

    def test_only_the_newest_generation_is_found(self):
        specs = [kvlarder.ContentSpec("m", revision) for revision in ("r2:a", "r2:a:1-ff", "r2:a:2-ee", "r2:b", "r2:a:1-dd")]
        self.assertEqual([one.revision for one in directory.newest(specs)], ["r2:a:2-ee", "r2:b"])


BLOCK = 128


class Engine:
    """Stores blocks as a connector does, under a layout of its own unless one is given."""

    def __init__(self, client, engine_id, layout=None):
        self.engine_id, self._session = engine_id, client.attach(engine_id)
        spec = kvlarder.VariantSpec(dtype="f16", layout=f"t/{layout or engine_id}/any", block_tokens=BLOCK, layers=1)
        self._variant = self._session.register([], [spec])[0]

    def tell(self, content):
        self._session.register([content], [])

    def store(self, content, tokens):
        self.tell(content)
        parent = self._session.seed(content)
        steps, blocks = kvlarder.chain(parent, tokens), []
        for first in range(0, len(tokens) // BLOCK * BLOCK, BLOCK):
            digest = steps[(first + BLOCK) // 16 - 1]
            blocks.append(kvlarder.PutBlock(digest, parent, tokens[first : first + BLOCK], [bytes(4_096)]))
            parent = digest
        assert set(self._session.put(self._variant, blocks)) <= {kvlarder.BlockStatus.OK, kvlarder.BlockStatus.DUPLICATE}
        return steps[BLOCK // 16 - 1 :: BLOCK // 16]

    def report_device(self, digests):
        self._session.report_device(self._variant, stored=digests)

    def close(self):
        self._session.close()


class Lookups(unittest.IsolatedAsyncioTestCase):
    """With a real daemon."""

    tokens = array.array("I", range(1_000, 1_000 + 8 * BLOCK))

    def setUp(self):
        self.daemon = Larderd(sys.argv[1], "--pool", "64MiB")
        self.addCleanup(self.daemon.end)
        self.client = kvlarder.connect(self.daemon.socket_dir)
        self.metrics = mock.Mock()
        self.enterContext(mock.patch.object(directory, "CONNECT_S", 3.0))  # a busy daemon accepts late

    def engine(self, *arguments):
        engine = Engine(self.client, *arguments)
        self.addCleanup(engine.close)
        return engine

    def directory(self, *engine_ids, lookup_timeout=5.0):
        servers = tuple(options.Address(one, f"http://{one}") for one in engine_ids)
        chosen = options.Options(servers=servers, socket_dir=self.daemon.socket_dir, lookup_timeout=lookup_timeout)
        found = directory.Directory(chosen, self.metrics)
        self.addCleanup(found._drop_client)
        return found

    async def hits(self, known, engine_ids="ab", salt=None, adapter="", tokens=None):
        return await known.hits(list(engine_ids), adapter, bool(adapter), salt, self.tokens if tokens is None else tokens)

    async def test_each_engine_has_what_it_can_load(self):
        content = kvlarder.ContentSpec("m", "r2:x")
        a, b = self.engine("a"), self.engine("b")
        a.store(content, self.tokens)
        b.store(content, self.tokens[: 2 * BLOCK])
        known = self.directory("a", "b")
        await known.refresh()
        found = await self.hits(known)
        self.assertEqual((found["a"].host, found["b"].host), (8 * BLOCK - 1, 2 * BLOCK))
        self.assertGreater(found["a"].load_s, found["b"].load_s)
        self.assertEqual(await self.hits(known, tokens=self.tokens[5:]), {})
        self.assertEqual(await self.hits(known, tokens=self.tokens[:5]), {})

    async def test_device_memory_costs_nothing(self):
        content = kvlarder.ContentSpec("m", "r2:x")
        a = self.engine("a")
        a.report_device(a.store(content, self.tokens)[:3])
        known = self.directory("a")
        await known.refresh()
        while (found := (await self.hits(known, "a"))["a"]).device == 0:  # reports are taken a moment later
            await asyncio.sleep(0.005)
        self.assertEqual((found.device, found.host), (3 * BLOCK, 5 * BLOCK - 1))

    async def test_salts_keep_users_apart(self):
        self.engine("a").store(kvlarder.ContentSpec("m", "r2:x", salt=names.salt("me")), self.tokens)
        known = self.directory("a")
        await known.refresh()
        self.assertEqual((await self.hits(known, "a", salt="me"))["a"].tokens, 8 * BLOCK - 1)
        self.assertEqual(await self.hits(known, "a", salt="you"), {})
        self.assertEqual(await self.hits(known, "a"), {})

    async def test_adapters_are_found_by_their_names(self):
        name = f"{weights.tagged_hash(('name', 'tuned'))[:16]}:0123"
        self.engine("a").store(kvlarder.ContentSpec("m", "r2:x", lora=name), self.tokens)
        known = self.directory("a")
        await known.refresh()
        self.assertEqual((await self.hits(known, "a", adapter="tuned"))["a"].tokens, 8 * BLOCK - 1)
        self.assertIsNone(await self.hits(known, "a", adapter="other"))
        self.assertEqual(await self.hits(known, "a"), {})

    async def test_nothing_is_found_that_was_stored_before_a_reset(self):
        contents, a = names.ContentNames("m", "r2:x"), self.engine("a")
        a.store(contents.of(None), self.tokens)
        contents.reset()
        a.store(contents.of(None), self.tokens[:BLOCK])
        known = self.directory("a")
        await known.refresh()
        self.assertEqual((await self.hits(known, "a"))["a"].tokens, BLOCK)

    async def test_an_engine_that_has_stored_nothing_finds_what_another_one_has(self):
        content = kvlarder.ContentSpec("m", "r2:x")
        self.engine("a", "same").store(content, self.tokens)
        self.engine("b", "same").tell(content)  # as the connector does when it attaches
        self.engine("c", "same")
        known = self.directory("a", "b", "c", "d")
        await known.refresh()
        found = await self.hits(known, "abcd")
        self.assertEqual({name: one.host for name, one in found.items()}, {"a": 8 * BLOCK - 1, "b": 8 * BLOCK - 1})

    async def test_an_engine_that_is_forgotten_while_the_daemon_answers(self):
        self.engine("a").store(kvlarder.ContentSpec("m", "r2:x"), self.tokens)
        self.engine("b")
        known = self.directory("a", "b")
        await known.refresh()
        look_up = known._look_up

        async def look_up_and_forget(*arguments):
            reply = await look_up(*arguments)
            known._engines.pop("a")
            return reply

        known._look_up = look_up_and_forget
        self.assertEqual((await self.hits(known))["a"].tokens, 8 * BLOCK - 1)

    async def test_an_engine_that_is_gone_loads_nothing(self):
        a = self.engine("a")
        a.store(kvlarder.ContentSpec("m", "r2:x"), self.tokens)
        a.close()
        known = self.directory("a")
        await known.refresh()
        while await self.hits(known, "a"):  # its session ends a moment later
            await asyncio.sleep(0.005)

    async def test_engines_without_contents_are_not_looked_up(self):
        self.engine("a")
        known = self.directory("a", "b")
        with self.assertLogs("larder.router", "WARNING") as log:
            await known.refresh()
            await known.refresh()
        self.assertEqual(len(log.output), 1)
        self.assertIn("larderd knows no engine 'b' yet", log.output[0])
        self.assertIsNone(await self.hits(known))
        self.metrics.lookup.assert_called_with("no_content")

    async def test_without_a_daemon_nobody_waits_and_the_log_says_so_once(self):
        self.engine("a").store(kvlarder.ContentSpec("m", "r2:x"), self.tokens)
        known = self.directory("a")
        await known.refresh()
        self.daemon.kill()
        with self.assertLogs("larder.router", "INFO") as log:
            for _ in range(3):
                await known.refresh()
                self.assertIsNone(await self.hits(known, "a"))
            self.assertEqual([line[:12] for line in log.output], ["WARNING:lard"])
            self.metrics.lookup.assert_called_with("no_daemon")
            self.daemon.start()
            while known.why_not:
                await known.refresh()
        self.assertRegex(log.output[0], "routed by queue alone: ")
        self.assertRegex(log.output[1], "Larder is asked about each request")

    async def test_a_daemon_that_hangs_is_left_alone(self):
        self.engine("a").store(kvlarder.ContentSpec("m", "r2:x"), self.tokens)
        known = self.directory("a", lookup_timeout=0.1)
        while known.why_not:  # a busy machine may need more than one look
            await known.refresh()
        self.daemon.stop()
        self.addCleanup(self.daemon.go_on)
        with self.assertLogs("larder.router", "WARNING") as log:
            for _ in range(directory.FAILURES_MOST):
                self.assertEqual(known.why_not, "")
                self.assertIsNone(await self.hits(known, "a"))
                self.assertEqual(self.metrics.lookup.call_args.args[0], "late")
            self.assertNotEqual(known.why_not, "")
            self.assertIsNone(await self.hits(known, "a"))
            self.metrics.lookup.assert_called_with("no_daemon")
        self.assertEqual(len(log.output), 1)
        self.daemon.go_on()
        hits = None
        while hits is None:  # the daemon may be late once more
            await known.refresh()
            hits = await self.hits(known, "a")
        self.assertEqual(hits["a"].tokens, 8 * BLOCK - 1)

    async def test_a_daemon_that_fails_again_and_again_is_looked_at_less_often(self):
        now = [0.0]
        known = self.directory("a")
        known._clock = lambda: now[0]
        pauses = []
        for _ in range(4):
            known._serves()
            known._fails(TimeoutError())
            pauses.append(known._pause_s)
        self.assertEqual(pauses, [4.0, 8.0, 16.0, 32.0])
        known._serves()
        now[0] += directory.STEADY_S
        known._serves()
        known._fails(TimeoutError())
        self.assertEqual(known._pause_s, directory.REFRESH_S)


if __name__ == "__main__":
    if sys.argv[2:] == ["--write"]:
        PAGE.write_text(page_with_options(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
