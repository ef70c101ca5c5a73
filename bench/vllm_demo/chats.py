"""The chats of the demo: a few turns each about one of some documents that they share, all from a seed.

Thread-safety: values and pure functions.
"""

import dataclasses
import itertools
import pathlib
import random

QUESTIONS = (
    "What is this page about?",
    "Who should read it, and why?",
    "Name three things that it says.",
    "What is the first thing that I have to do?",
    "Which words does it define?",
    "What does it say about errors?",
    "What would you ask its authors?",
    "Sum up its beginning in one sentence.",
    "Which part of it is the most important one?",
    "What does it not say?",
    "Explain it to somebody who is new here.",
    "Which numbers does it name?",
)
INSTRUCTION = "Answer questions about this page in one or two sentences.\n\n"
PAUSE_S = 2.0  # the mean time in which a user reads an answer and asks the next question


@dataclasses.dataclass(frozen=True)
class Turn:
    question: str
    pause_s: float  # from the end of the answer before


@dataclasses.dataclass(frozen=True)
class Chat:
    at_s: float  # when it begins
    document: int
    system: str  # the first message, which chats about one document have in common
    turns: tuple

    @property
    def asks(self):
        return len(self.turns)


def documents(folder, count, characters):
    """Returns the beginnings of `count` pages of a folder, each with `characters` characters at most, up to the end of a line.

    The pages are the first ones by name that are long enough.  Raises ValueError if there are too few.
    """
    texts = (path.read_text(encoding="utf-8") for path in sorted(pathlib.Path(folder).glob("*.md")))
    long = list(itertools.islice((text for text in texts if len(text) >= characters), count))
    if len(long) < count:
        raise ValueError(f"{folder} has {len(long)} pages of {characters} characters, and {count} are needed")
    return [text[: text.rindex("\n", 0, characters)] for text in long]


def chats(texts, count, turns, rate, seed):
    """Returns `count` Chats of `turns` turns, which begin at random (a Poisson process).

    rate: questions per second, if answers take no time.  Another rate changes nothing but when chats begin; fewer chats are
    the first ones of more.  Of len(texts) chats in a row, counted from the first, each is about another document.
    """
    rolls, at_s, made, order = random.Random(seed), 0.0, [], []
    for _ in range(count):
        at_s += rolls.expovariate(1.0) * turns / rate
        order = order or rolls.sample(range(len(texts)), len(texts))
        document = order.pop()
        questions = rolls.sample(QUESTIONS, turns)
        pauses = [0.0] + [rolls.expovariate(1.0 / PAUSE_S) for _ in range(turns - 1)]
        made.append(Chat(at_s, document, INSTRUCTION + texts[document], tuple(map(Turn, questions, pauses))))
    return made
