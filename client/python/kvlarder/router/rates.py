"""How fast servers compute prompts, learnt from when their answers begin.

A server computes prompts one after the other, so the tokens that it computed between two answers' beginnings, divided
by the time between them, are its rate, whatever else it did meanwhile (decoding makes it slower, and that counts).
Medians of the last samples are used, and for the time that every answer takes a fifth of them is less: an answer that is late
for another reason changes nothing.  What a short prompt takes beyond that time is due to the requests that the server is
answering meanwhile.  A server that has told too little, for example because it has just started or was not used for a while,
is taken for one like the others.
Thread-safety: the objects of this file are for one thread.
"""

import collections
import statistics
import time

SAMPLES, SAMPLES_LEAST = 15, 3
AGE_MOST_S = 600.0  # of a sample: otherwise a server that was slow once would never be tried again
TOKENS_LEAST = 512  # of one sample of the rate; fewer tell more about the length of a step than about the rate
TOKENS_FEW = 64  # an answer that computes at most so many tells the time that every answer takes
RATE_LEAST, RATE_MOST = 10.0, 1e7
FIXED_MOST_S = 10.0
# What an answer waits for in a busy server is no fixed time: a server that was busy once would look slow, be chosen no more, and
# so never tell otherwise.
FIXED_PART = 0.2


class Samples:
    """The last samples of one quantity."""

    def __init__(self, clock, part=0.5):
        """part: of the samples that are less than what they tell; 0.5 is the median."""
        self._clock, self._samples = clock, collections.deque(maxlen=SAMPLES)  # of (when, value)
        self._part, self._told = part, None

    def add(self, value):
        self._samples.append((self._clock(), value))
        self._calculate()

    @property
    def told(self):
        """What they tell, or None if there are too few."""
        oldest = self._clock() - AGE_MOST_S
        while self._samples and self._samples[0][0] < oldest:
            self._samples.popleft()
            self._calculate()
        return self._told

    def _calculate(self):
        values = sorted(value for _, value in self._samples)
        if len(values) < SAMPLES_LEAST:
            self._told = None
        else:
            self._told = statistics.median(values) if self._part == 0.5 else values[int(self._part * len(values))]


class Prefill:
    """The rate of one server."""

    def __init__(self, guess, running_weight, peers, clock=time.monotonic):
        """What is guessed while no server has told its own: guess, tokens per second; running_weight, what a token of a running
        request costs a new one, in tokens of its prompt.  peers: of all servers, a list that this joins."""
        self._guess, self._running_weight, self._peers = guess, running_weight, peers
        self._rates, self._fixed, self._running = Samples(clock), Samples(clock, FIXED_PART), Samples(clock)
        self._tokens, self._seconds = 0, 0.0
        peers.append(self)

    @property
    def rate(self):
        """Tokens per second."""
        return self._known(lambda one: one._rates, self._guess)

    @property
    def fixed_s(self):
        """The time that every answer takes, however few tokens are computed."""
        return self._known(lambda one: one._fixed, 0.0)

    def _known(self, samples, guess):
        if (own := samples(self).told) is not None:
            return own
        others = [found for peer in self._peers if (found := samples(peer).told) is not None]
        return statistics.median(others) if others else guess

    def seconds(self, tokens):
        """Returns how long the server computes before the first token of a prompt of which it computes so many."""
        return self.fixed_s + tokens / self.rate

    def running_s(self, requests, tokens):
        """Returns by how many seconds a new answer begins later because the server is answering `requests` others, whose
        prompts have `tokens` tokens together."""
        if (learnt := self._known(lambda one: one._running, None)) is not None:
            return requests * learnt
        return tokens * self._running_weight / self.rate

    def observe(self, tokens, seconds, running=0):
        """The server has computed so many tokens of one prompt in so many seconds (not negative), and of no other prompt.

        running: how many requests it was answering meanwhile.
        """
        if tokens <= TOKENS_FEW:
            self._fixed.add(min(seconds, FIXED_MOST_S))
            if running and self._fixed.told is not None:
                self._running.add(min(max(seconds - self._fixed.told, 0.0), FIXED_MOST_S) / running)
            return
        self._tokens += tokens
        # fixed_s is a median and may be more than this answer took, which was not endlessly fast for that.
        self._seconds += max(seconds - self.fixed_s, seconds / 2)
        if self._tokens >= TOKENS_LEAST:
            self._rates.add(min(max(self._tokens / max(self._seconds, 1e-6), RATE_LEAST), RATE_MOST))
            self.forget()

    def forget(self):
        """What was seen since the last sample says nothing: it is not known what the server did meanwhile."""
        self._tokens, self._seconds = 0, 0.0
