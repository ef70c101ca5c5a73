"""Keeps a session with larderd: attaches, attaches again when the daemon was restarted, and says "not now" at once
while none serves.

A thread of its own does all that may take long.  Between calls it asks the daemon, every PROBE_EVERY_S and after each
call that failed, whether it answers in PROBE_DEADLINE_S.  While it does not, `get` returns None.
Thread-safety: any thread.
Lifecycle: made -> close, which waits for an attempt under way and for the end of the session.  An attempt connects and
attaches, with steps that take at most about CONNECT_DEADLINE_S each, and registers, in at most REGISTER_DEADLINE_S.  A
session ends in at most about CONNECT_DEADLINE_S and 2 s.
"""

import threading

import kvlarder

CONNECT_DEADLINE_S, REGISTER_DEADLINE_S = 2.0, 2.0
PROBE_EVERY_S, PROBE_DEADLINE_S = 1.0, 0.5
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.1, 1.0
NO_SESSION_YET, CLOSED = "no daemon has answered yet", "the storage is closed"


class Live:
    """A session that serves."""

    def __init__(self, session, variant, names):
        """names: the PageNames of the tenant that the daemon said this user is."""
        self.session, self.variant, self.names = session, variant, names


class SessionKeeper:
    def __init__(self, name, attach, lost, log, counters):
        """name: of the engine, for the log; attach: returns a new Live, or raises why there is none; lost: called with a
        Live that ends, before its session is closed; both on the keeper's thread.  log: has info() and warning();
        counters: Counters."""
        self._attach, self._lost, self._log, self._counters = attach, lost, log, counters
        self._name, self._live, self._state, self._said = name, None, NO_SESSION_YET, None
        self._stopping, self._wake = False, threading.Condition()
        self._look = False
        self._thread = threading.Thread(target=self._run, name="larder-session", daemon=True)
        self._thread.start()

    def get(self):
        """Returns the Live that serves, or None.  Never waits."""
        return self._live

    @property
    def state(self):
        """'' while a session serves, otherwise why none does."""
        return self._state

    def note(self, live, error):
        """To be told of a call with `live` that the daemon did not answer (TimeoutError, ConnectionError).  Until it has
        answered the keeper, get returns None."""
        with self._wake:
            if self._live is live:
                self._live, self._state = None, str(error)
                self._look = True
                self._wake.notify_all()

    def close(self):
        """Ends the session.  May be called again."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        self._thread.join()

    def _run(self):
        backoff = BACKOFF_MIN_S
        while not self._stopping:
            try:
                live = self._attach()
            except Exception as error:  # whatever it is: SGLang must go on, and the next try may succeed
                self._counters.add("attach_failures")
                self._show(None, str(error))
                self._sleep(backoff)
                backoff = min(2 * backoff, BACKOFF_MAX_S)
                continue
            backoff = BACKOFF_MIN_S
            self._counters.add("sessions")
            self._show(live, "")
            self._watch(live)
            self._show(None, self._state or CLOSED)
            self._lost(live)
            live.session.close()
        self._show(None, CLOSED)

    def _watch(self, live):
        """Returns when the session is lost, or the keeper is to stop."""
        while True:
            self._sleep(PROBE_EVERY_S)
            if self._stopping:
                return
            try:
                live.session.register([], [], PROBE_DEADLINE_S)  # answered once the daemon has handled what came before
                if not self._look:  # no call has failed since it was asked
                    self._show(live, "")
            except TimeoutError:
                self._show(None, "larderd does not answer in time")
            except Exception as error:
                self._show(None, str(error))
                return

    def _sleep(self, seconds):
        """Waits, unless there is something to look at or the keeper is to stop."""
        with self._wake:
            self._wake.wait_for(lambda: self._look or self._stopping, seconds)
            self._look = False

    def _show(self, live, state):
        """Makes `live` what get returns, and logs a change."""
        with self._wake:
            self._live, self._state = live, state
        if state == self._said or self._stopping:
            return
        self._said = state
        if live is not None:
            self._log.info("Larder is used; engine %s", self._name)
        else:
            self._log.warning("Larder is not used now: %s", state)
