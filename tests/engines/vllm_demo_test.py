#!/usr/bin/env python3
"""The parts of the demo with vLLM (bench/vllm_demo) that need no vLLM: its chats, its clients, what it counts, prints and
draws, and how its processes end.

vllm_demo_test.py LARDERD   with a Python that has aiohttp and prometheus_client, such as that of deploy/fetch-vllm.sh
"""

import asyncio
import collections
import json
import os
import pathlib
import sys
import tempfile
import unittest
import xml.dom.minidom

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "vllm_demo"))

import aiohttp  # noqa: E402
import chats  # noqa: E402
import clients  # noqa: E402
import counts  # noqa: E402
import picture  # noqa: E402
import processes  # noqa: E402
import tables  # noqa: E402
from aiohttp import web  # noqa: E402


class Chats(unittest.TestCase):
    TEXTS = ("a", "b", "c")

    def made(self, count=12, rate=1.0, seed=1):
        return chats.chats(self.TEXTS, count, 3, rate, seed)

    def test_a_seed_makes_the_same_chats_and_another_seed_others(self):
        self.assertEqual(self.made(), self.made())
        self.assertNotEqual([one.turns for one in self.made()], [one.turns for one in self.made(seed=2)])

    def test_another_rate_changes_only_when_chats_begin(self):
        slow, fast = self.made(rate=0.5), self.made(rate=2.0)
        for one, other in zip(slow, fast, strict=True):
            self.assertEqual((one.document, one.turns), (other.document, other.turns))
            self.assertAlmostEqual(one.at_s, 4 * other.at_s)

    def test_fewer_chats_are_the_first_ones(self):
        self.assertEqual(self.made(5), self.made(12)[:5])

    def test_documents_take_turns(self):
        order = [one.document for one in self.made()]
        for begin in range(0, len(order), 3):
            self.assertEqual(sorted(order[begin : begin + 3]), [0, 1, 2])

    def test_documents_end_with_a_line_and_are_not_longer(self):
        for text in chats.documents(ROOT / "docs", 6, 2_800):
            self.assertLessEqual(len(text), 2_800)
            self.assertGreater(len(text), 1_400)
        with self.assertRaisesRegex(ValueError, "pages of 10000000 characters"):
            chats.documents(ROOT / "docs", 6, 10_000_000)


def event(**fields):
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def says(text):
    return event(choices=[{"delta": {"content": text}}])


class Server:
    """Answers each chat with the events that it is given, and keeps what it was asked."""

    def __init__(self, events, status=200):
        self.events, self.status, self.asked = events, status, []

    async def __aenter__(self):
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = "http://127.0.0.1:{}".format(self._runner.addresses[0][1])
        return self

    async def __aexit__(self, *_):
        await self._runner.cleanup()

    async def _answer(self, request):
        self.asked.append(await request.json())
        response = web.StreamResponse(status=self.status)
        await response.prepare(request)
        for one in self.events:
            await response.write(one)
        await response.write_eof()
        return response


ANSWER = (
    event(choices=[{"delta": {"role": "assistant", "content": ""}}]), says("It "), says("is "), says("so."),
    event(choices=[], usage={"prompt_tokens": 40, "completion_tokens": 3}), b"data: [DONE]\n\n",
)  # fmt: skip


class Clients(unittest.IsolatedAsyncioTestCase):
    async def hold(self, server, count=2):
        sent = chats.chats(("a", "b"), count, 2, 1_000.0, 1)
        quick = [
            chats.Chat(one.at_s, one.document, one.system, tuple(chats.Turn(turn.question, 0.0) for turn in one.turns))
            for one in sent
        ]
        async with server, aiohttp.ClientSession() as http:
            return await clients.hold(http, server.url, quick, "salt", 3)

    async def test_a_turn_contains_the_answers_before(self):
        server = Server(ANSWER)
        held = await self.hold(server)
        self.assertEqual(len(held.answers), 4)
        for answer in held.answers:
            self.assertEqual((answer.text, answer.prompt_tokens, answer.tokens), ("It is so.", 40, 3))
            self.assertEqual(len(answer.gaps_s), 2)
            self.assertGreater(answer.first_s, 0)
        roles = sorted([one["role"] for one in asked["messages"]] for asked in server.asked)
        self.assertEqual(roles, 2 * [["system", "user"]] + 2 * [["system", "user", "assistant", "user"]])
        self.assertEqual({asked["cache_salt"] for asked in server.asked}, {"salt"})
        self.assertIn("It is so.", [asked["messages"][-2]["content"] for asked in server.asked])

    async def test_a_question_that_fails_ends_all(self):
        for server, why in (
            (Server((), 503), "status 503"),
            (Server((event(error={"message": "out of memory"}),)), "out of memory"),
            (Server(ANSWER[:3]), "0 of 3 tokens"),
        ):
            with self.assertRaisesRegex(processes.Failed, why):
                await self.hold(server)
            self.assertEqual(asyncio.all_tasks(), {asyncio.current_task()})


PAGE = """
# TYPE vllm:prompt_tokens_cached_by_source counter
vllm:prompt_tokens_cached_by_source_total{engine="0",source="device"} 64.0
vllm:prompt_tokens_cached_by_source_total{engine="1",source="device"} 32.0
vllm:prompt_tokens_cached_by_source_total{engine="0",source="host"} 128.0
# TYPE vllm:larder_bytes_loaded counter
vllm:larder_bytes_loaded_total{engine="0"} 1000.0
"""


def result(name, larder, policy, firsts, device, loaded, rate=1.0):
    answers = [clients.Answer(first, [0.02, 0.04], "so", 100, 3) for first in firsts]
    counted = collections.Counter(device=device, host=50, computed=10, bytes_loaded=loaded)
    return tables.Result(name, larder, policy, rate, clients.Held(answers, 10.0), counted)


RESULTS = [
    result("Larder, kv", True, "kv", [0.1, 0.3], 300, 1e6),
    result("Larder, round robin", True, "round_robin", [0.2, 0.6], 150, 4e6),
    result("without, round robin", False, "round_robin", [1.0, 3.0], 0, 0),
]


class Shown(unittest.TestCase):
    def test_counters_are_summed_by_what_they_count(self):
        found = counts.counts_of(PAGE)
        self.assertEqual((found["device"], found["host"], found["bytes_loaded"], found["disk"]), (96, 128, 1000, 0))

    def test_the_comparison_is_of_these_configurations(self):
        lines = tables.comparison(RESULTS)
        self.assertRegex(lines[0], r"device 2\.00, bytes loaded 0\.25, mean time to first token 0\.50")
        self.assertRegex(lines[1], r"mean time to first token 0\.10$")
        self.assertEqual(tables.comparison(RESULTS[2:]), [])

    def test_a_table_has_a_column_for_each_result(self):
        lines = tables.table(RESULTS)
        self.assertEqual(lines[1].split()[-3:], ["0.20", "0.40", "2.00"])
        self.assertEqual(len({len(line) for line in lines}), 1)
        self.assertEqual(lines[-2].split()[-3:], 3 * ["0.20"])

    def test_troubles_are_told(self):
        self.assertEqual(tables.troubles(RESULTS), [])
        bad = result("Larder, kv", True, "kv", [0.1], 0, 0)
        bad.counted["blocks_failed"] = 3
        self.assertIn("3 blocks that could not be loaded", tables.troubles([bad])[0])

    def test_the_picture_has_a_line_for_each_result_within_its_panel(self):
        more = [result(one.name, one.larder, one.policy, [0.004, 900.0], 0, 0, rate=2.0) for one in RESULTS]
        drawn = xml.dom.minidom.parseString(picture.svg(RESULTS + more))
        lines = [one for one in drawn.getElementsByTagName("path") if one.getAttribute("fill") == "none"]
        self.assertEqual(len(lines), 6)
        width = float(drawn.documentElement.getAttribute("width"))
        for line in lines:
            ends = [float(step.split("V")[0]) for step in line.getAttribute("d").split("H")[1:]]
            self.assertEqual(ends, sorted(ends))
            self.assertLess(ends[-1], width)


class Processes(unittest.TestCase):
    def start(self, folder, script):
        return processes.Process("child", ["/bin/sh", "-c", script], folder, dict(os.environ))

    def test_whatever_a_process_has_started_ends_with_it(self):
        with tempfile.TemporaryDirectory() as folder:
            fifo = os.path.join(folder, "fifo")
            os.mkfifo(fifo)
            # Both hold the fifo open, and the one in the background does not end by itself.
            with processes.ended([self.start(folder, f"exec 3>{fifo}; (trap '' TERM; sleep 1000) & echo up >&3; wait")]):
                reader = open(fifo)
                self.assertEqual(reader.readline(), "up\n")
            self.assertEqual(reader.read(), "")  # both have closed it
            reader.close()

    def test_a_process_that_ends_too_soon_is_a_failure_with_its_log(self):
        with tempfile.TemporaryDirectory() as folder:
            child = self.start(folder, "echo no such model; exit 3")
            child._process.wait()
            with self.assertRaisesRegex(processes.Failed, "status 3(.|\n)*no such model"):
                child.check()
            child.end()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
