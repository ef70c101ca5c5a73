"""Drives the C++ scheduler and the stages of an engine on a simulated clock, on which loads fail and arrive late.

It does not decide what is computed or loaded: it gives steps and loads their durations and reports their ends.
"""

import heapq
import itertools
import math

import kvlarder

BUDGET = 1 << 30  # tokens; a step is always a whole chunk, so that its bits equal the reference's


class Restore:
    """One case.  `random` draws durations and failures.  `harm(load)` returns options for Stage.place."""

    def __init__(self, case, stages, random, harm=lambda load: {}):
        self.case, self.stages, self.random, self.harm = case, stages, random, harm
        self.scheduler = kvlarder.Scheduler(case.options, case.costs)
        self.now_s, self.order, self.events = 0.0, itertools.count(), []
        self.steps, self.loads = {}, {}
        self.free_s = {}  # by channel: when it is done with its loads
        self.failed = self.late = self.hedges = self.overlapped = self.suffixed = 0

    def run(self):
        """Runs until there is an outcome, and returns it."""
        self.scheduler.add(self.case.spec, self.now_s)
        for _ in range(100_000):
            self._ask()
            outcomes = self._collect()
            if outcomes:
                return outcomes[0]
            self._advance()
        raise AssertionError("the restore does not end")

    def _advance(self):
        wakeup_s = self.scheduler.next_wakeup(self.now_s)
        event_s = self.events[0][0] if self.events else math.inf
        assert min(event_s, wakeup_s) < math.inf, "no event is left, but there is no outcome"
        if event_s <= wakeup_s:
            self.now_s, _, end, what = heapq.heappop(self.events)
            end(what)
        else:
            self.now_s = wakeup_s
        self.scheduler.on_time(self.now_s)

    def _at(self, time_s, end, what):
        heapq.heappush(self.events, (time_s, next(self.order), end, what))

    def _ask(self):
        for index in range(len(self.stages)):
            if all(step.stage != index for step in self.steps.values()):
                step = self.scheduler.next_compute(index, BUDGET, self.now_s)
                if step is not None:
                    self._begin_step(step)
        for channel in range(1, self.case.channels + 1):
            while sum(load.channel == channel for load in self.loads.values()) < self.case.in_flight:
                loads = self.scheduler.next_loads(channel, 1, self.now_s)
                if not loads:
                    break
                for load in loads:
                    self._begin_load(load)

    def _collect(self):
        for load in self.scheduler.take_cancelled_loads():
            cancelled = self.loads.pop(load)
            self.late += cancelled.deadline_s <= self.now_s
            self._at(self.now_s + self.random.random(), self._arrive_late, cancelled)
        for step in self.scheduler.take_abandoned_steps():
            self.stages[self.steps.pop(step).stage].abandon(step)
        return self.scheduler.take_outcomes()

    # ---- computing

    def _begin_step(self, step):
        self.steps[step.id] = step
        self.hedges += step.hedge
        if step.kind == kvlarder.StepKind.SUFFIX:
            self.suffixed += 1
            self.overlapped += step.layers.begin > 0 or step.layers.end < self.case.layers
        self.stages[step.stage].compute(step.id, step.tokens.begin, step.layers.begin, step.layers.end)
        self._at(self.now_s + step.estimate_s * self.case.engine_factor * self.random.uniform(0.7, 1.4),
                 self._end_step, step)

    def _end_step(self, step):
        if self.steps.pop(step.id, None) is None:
            return  # abandoned
        hidden = self.stages[step.stage].commit(step.id)
        if hidden is not None and step.stage + 1 < len(self.stages) and self.case.hands_over:
            self.stages[step.stage + 1].hand_over(step.tokens.begin, hidden)
        self.scheduler.on_computed(step.id, self.now_s)

    # ---- loading

    def _begin_load(self, load):
        self.loads[load.id] = load
        self.hedges += load.hedge
        draw = self.random.random()
        end = self._end_load
        if draw < self.case.stalls:
            return  # the load never ends; the scheduler's deadline cancels it
        if draw < self.case.stalls + self.case.gone:
            end = self._lose_load
        elif draw < self.case.stalls + self.case.gone + self.case.fails:
            end = self._fail_load
        begin_s = max(self.now_s, self.free_s.get(load.channel, 0))
        takes_s = load.bytes / self.case.rate * self.case.link_factor * self.random.uniform(0.7, 1.4)
        self.free_s[load.channel] = begin_s + takes_s
        self._at(begin_s + takes_s, end, load)

    def _fetch(self, load):
        stage = self.stages[load.stage]
        if load.boundary:
            status = stage.fetch_boundary(load.id, load.block, round(load.bytes / self.case.boundary_bytes))
        else:
            status = stage.fetch(load.id, load.block, load.layers.begin, load.layers.end)
        assert status == "OK", f"block {load.block} of stage {load.stage} is {status}"
        return stage

    def _end_load(self, load):
        if self.loads.pop(load.id, None) is None:
            return  # cancelled
        stage = self._fetch(load)
        if self.scheduler.on_loaded(load.id, self.now_s) == kvlarder.Landing.PLACE:
            stage.place(load.id, **self.harm(load))
        else:
            stage.drop(load.id)

    def _lose_load(self, load):
        if self.loads.pop(load.id, None) is None:
            return
        status = self.stages[load.stage].fetch_absent()
        assert status == "MISSING", status
        self.failed += 1
        self.scheduler.on_load_failed(load.id, kvlarder.LoadFailure.GONE, self.now_s)

    def _fail_load(self, load):
        if self.loads.pop(load.id, None) is None:
            return
        self.failed += 1
        self.scheduler.on_load_failed(load.id, kvlarder.LoadFailure.TRANSIENT, self.now_s)

    def _arrive_late(self, load):
        """A cancelled load arrives all the same."""
        landing = self.scheduler.on_loaded(load.id, self.now_s)
        assert landing == kvlarder.Landing.DROP, "bytes of a cancelled load must be dropped"
