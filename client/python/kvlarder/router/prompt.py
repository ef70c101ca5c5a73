"""What a request asks: its model, its prompt, and who may share its KV.

Only what decides about KV is read; whether the rest makes sense, the server says.
Thread-safety: pure functions and values.
"""

import array
import dataclasses
import json

import kvlarder

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
CHARACTERS_A_TOKEN = 4  # of a text whose tokens are not known
GUESS_MOST = 131_072  # tokens
# What of a chat decides about its tokens, and POST /tokenize takes.
CHAT_FIELDS = (
    "messages", "add_generation_prompt", "continue_final_message", "add_special_tokens", "chat_template",
    "chat_template_kwargs", "tools",
)  # fmt: skip


class NotJson(ValueError):
    """The body of a request is no JSON object.  The text says why."""


@dataclasses.dataclass(frozen=True)
class Prompt:
    model: str = ""  # or the name of an adapter; empty: the server's own
    salt: str | None = None  # cache_salt
    streams: bool = False  # its first byte comes with its first token
    tokens: array.array | None = None  # its first ids, at most kvlarder.LOOKUP_TOKENS_MAX, if the request brings them
    count: int = 0  # of all its tokens
    counted: bool = False  # count is no guess
    question: bytes | None = None  # the body of POST /tokenize that tells its tokens, if there is one

    def without_content(self):
        return dataclasses.replace(self, tokens=None, question=None)


def of(path, body):
    """Returns the Prompt of a request's body.  Raises NotJson."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:  # ValueError: also of an encoding that is none
        raise NotJson(f"the body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise NotJson("the body is JSON, but no object")
    salt = fields.get("cache_salt")
    prompt = Prompt(
        model=_text(fields.get("model")) or "",
        salt=_text(salt),
        streams=fields.get("stream") is True or fields.get("max_tokens") == 1,
    )
    if not _is_not_shared(fields) and (salt is None or prompt.salt is not None):
        prompt = _chat(prompt, fields) if path == CHAT else _completion(prompt, fields)
    return prompt if prompt.counted else dataclasses.replace(prompt, count=_guess(fields))


def _guess(fields):
    """Returns how many tokens a request may have, at most GUESS_MOST, by the texts and ids in it.

    Images and the like count nothing: how many bytes they have says nothing about how many tokens they become.
    """
    characters = sum(len(text) for text in _texts(fields) if isinstance(text, str))
    asked = fields.get("prompt")
    ids = sum(len(one) for one in asked if isinstance(one, list)) if isinstance(asked, list) else 0
    return min(characters // CHARACTERS_A_TOKEN + ids, GUESS_MOST)


def _texts(fields):
    """Yields the texts of a completion's prompts or of a chat's messages, and what stands in place of some."""
    asked, messages = fields.get("prompt"), fields.get("messages")
    yield from asked if isinstance(asked, list) else [asked]
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else [content]:
            yield part.get("text") if isinstance(part, dict) else part


def _text(value):
    """Returns a text, or None if it is none: JSON can name halves of characters, which have no bytes."""
    try:
        return value if isinstance(value, str) and value.encode() is not None else None
    except UnicodeEncodeError:
        return None


def _is_not_shared(fields):
    """Returns whether vLLM neither loads nor stores the KV of such a prompt, or cuts it before."""
    return any(fields.get(option) is not None for option in ("prompt_embeds", "prompt_logprobs", "truncate_prompt_tokens"))


def _completion(prompt, fields):
    asked = fields.get("prompt")
    if isinstance(asked, list) and len(asked) == 1 and isinstance(asked[0], (str, list)):
        asked = asked[0]
    if isinstance(asked, str):
        question = {"prompt": asked, "add_special_tokens": fields.get("add_special_tokens", True)}
        return _with_question(prompt, question)
    if isinstance(asked, list):  # of ids, or of several prompts, which are not looked up
        return with_tokens(prompt, asked)
    return prompt


def _chat(prompt, fields):
    messages = fields.get("messages")
    if not isinstance(messages, list) or not all(map(_is_text, messages)):
        return prompt
    question = {name: fields[name] for name in CHAT_FIELDS if fields.get(name) is not None}
    more = {name: fields[name] for name in ("documents", "reasoning_effort") if fields.get(name) is not None}
    if more:
        given = fields.get("chat_template_kwargs")
        question["chat_template_kwargs"] = {**more, **(given if isinstance(given, dict) else {})}
    return _with_question(prompt, question)


def _is_text(message):
    """Returns whether a message has text alone: KV of images and sounds is not in Larder."""
    if not isinstance(message, dict):
        return False
    content = message.get("content")
    if isinstance(content, list):
        return all(isinstance(part, dict) and part.get("type") in ("text", "refusal") for part in content)
    return content is None or isinstance(content, str)


def _with_question(prompt, question):
    if prompt.model:
        question["model"] = prompt.model
    return dataclasses.replace(prompt, question=json.dumps(question).encode())


def with_tokens(prompt, ids):
    """Returns the prompt with its token ids; without them if they are none."""
    try:
        tokens = array.array("I", ids[: kvlarder.LOOKUP_TOKENS_MAX])
    except (TypeError, OverflowError):
        return prompt
    return with_ids(prompt, tokens, len(ids))


def with_ids(prompt, tokens, count):
    """Returns the prompt with the first of its `count` token ids."""
    return dataclasses.replace(prompt, tokens=tokens, count=count, counted=True, question=None)
