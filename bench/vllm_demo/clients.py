"""Holds chats with a server of OpenAI's API, and takes the times that its clients see.

Thread-safety: one event loop.
"""

import asyncio
import dataclasses
import json
import time

from processes import Failed


@dataclasses.dataclass
class Answer:
    """first_s: from the question to the first token; gaps_s: between two later parts, each of which is a token."""

    first_s: float = 0.0
    gaps_s: list = dataclasses.field(default_factory=list)
    text: str = ""
    prompt_tokens: int = 0
    tokens: int = 0


@dataclasses.dataclass
class Held:
    """What came of some chats.  seconds: from the first question to the end of the last answer."""

    answers: list
    seconds: float


async def ask(http, url, messages, salt, tokens):
    """Returns the Answer of a chat that was asked for as many tokens.  Raises Failed.

    salt: cache_salt of the request: nothing is found that was asked with another one.
    """
    body = {
        "model": "demo", "messages": messages, "cache_salt": salt, "max_tokens": tokens, "ignore_eos": True,
        "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    answer, last, parts = Answer(), time.perf_counter(), []
    async with http.post(f"{url}/v1/chat/completions", json=body) as reply:
        if reply.status != 200:
            raise Failed(f"{url} answered with status {reply.status}: {(await reply.text())[:500]}")
        async for part in _parts(reply):
            now = time.perf_counter()
            parts.append(part)
            if said := _said(part):
                if answer.text:
                    answer.gaps_s.append(now - last)
                else:
                    answer.first_s = now - last
                answer.text, last = answer.text + said, now
            if usage := part.get("usage"):
                answer.prompt_tokens, answer.tokens = usage["prompt_tokens"], usage["completion_tokens"]
    if not answer.text or answer.tokens != tokens:
        raise Failed(
            f"{url} answered with {answer.tokens} of {tokens} tokens: '{answer.text}'; it sent {len(parts)} parts, the last of "
            f"them {parts[-2:]}"
        )
    return answer


async def _parts(reply):
    """Yields the events of a stream of server-sent events, as dicts.  Raises Failed if one of them is an error."""
    async for line in reply.content:
        data = line.removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or data == b"[DONE]":
            continue
        part = json.loads(data)
        if "error" in part:
            raise Failed(f"a server ended an answer with an error: {part['error']}")
        yield part


def _said(part):
    choices = part.get("choices")
    return choices[0]["delta"].get("content") if choices else None


async def hold(http, url, chats, salt, tokens):
    """Holds chats, each from its time on.  Returns what Held.  Raises Failed with the first question that fails."""
    began, answers = time.perf_counter(), []
    first = min(chat.at_s for chat in chats)

    async def one(chat):
        await asyncio.sleep(chat.at_s - first)
        messages = [{"role": "system", "content": chat.system}]
        for turn in chat.turns:
            await asyncio.sleep(turn.pause_s)
            messages.append({"role": "user", "content": turn.question})
            answer = await ask(http, url, messages, salt, tokens)
            messages.append({"role": "assistant", "content": answer.text})
            answers.append(answer)

    tasks = [asyncio.create_task(one(chat)) for chat in chats]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return Held(answers, time.perf_counter() - began)
