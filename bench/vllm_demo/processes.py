"""The processes of the demo beside the daemon: vLLM servers, and the router in front of them.

Each is the leader of a session of its own, so that it is ended together with whatever it has started, and Ctrl-C in a
terminal reaches the demo alone.
Thread-safety: one thread.
"""

import asyncio
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import aiohttp

START_S, END_S = 300.0, 20.0  # vLLM starts in a minute on slow cores, and ends in a few seconds
ERRORS_MOST, LINES_MOST = 6, 30  # of a log
BLOCK = 32  # tokens; vLLM's own default on CPUs is 128, of which a short prompt has few
AT_ONCE = 8  # requests that a server computes at once
CONTEXT = 1_216  # tokens of a prompt and its answer at most, unless flags say otherwise; a server's own cache has more
# Processors without instructions for bf16 compute a sixth of the tokens in it that they compute in float32.
DTYPE = "bfloat16" if "bf16" in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8") else "float32"


class Failed(Exception):
    """The demo cannot go on.  The text says why."""


class Process:
    """A program in a session of its own, whose output goes to a file."""

    def __init__(self, name, command, folder, env):
        self.name, self._log = name, os.path.join(folder, f"{name}-{time.monotonic_ns()}.log")
        with open(self._log, "wb") as file:
            self._process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )

    def output(self):
        with open(self._log, encoding="utf-8", errors="replace") as file:
            return file.read()

    def last_words(self):
        """Returns what its log says about errors, otherwise how it ends: the processes of a server that fails all show where
        they were, and one line says why."""
        lines = self.output().splitlines()
        errors = [line for line in lines if "Error: " in line][-ERRORS_MOST:]
        return "\n".join(["its log says:", *(errors or lines[-LINES_MOST:])])

    @property
    def pid(self):
        return self._process.pid

    def check(self):
        """Raises Failed if it has ended."""
        if self._process.poll() is not None:
            raise Failed(f"{self.name} ended with status {self._process.returncode}; {self.last_words()}")

    def begin_to_end(self):
        if self._process.poll() is None:
            self._process.terminate()

    def end(self):
        """Ends it and all processes of its session.  Raises Failed if some are left."""
        self.begin_to_end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        until = time.monotonic() + END_S
        while self._kill_rest():
            self._process.poll()  # takes note that it has ended
            if time.monotonic() > until:
                raise Failed(f"processes of {self.name} do not end: process group {self._process.pid}")
            time.sleep(0.05)

    def _kill_rest(self):
        """Kills what is left.  Returns whether something was."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True


@contextlib.contextmanager
def ended(started):
    """Ends Processes at last, all at once."""
    try:
        yield started
    finally:
        for process in started:
            process.begin_to_end()
        for process in started:
            process.end()


def environment(folder, cores):
    """Returns the variables of processes whose temporary files are in the folder, and of which each of two computes on half
    of the cores.

    A vLLM engine is one process: vLLM would start another one to bind its threads to cores, and is told not to bind them.
    """
    return {
        **{name: value for name, value in os.environ.items() if name != "LARDER_SOCKET_DIR"},
        "TMPDIR": folder, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(max(1, cores // 2)),
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip


def _free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Server(Process):
    """A vLLM server.  socket_dir: of the daemon whose blocks it uses; None: it runs without Larder.  options: of the connector;
    flags: more of vLLM's, the last ones count."""

    def __init__(self, engine_id, model, cache_tokens, socket_dir, folder, env, options=None, flags=()):
        self.engine_id, port = engine_id, _free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "demo",
            "--host", "127.0.0.1", "--port", str(port), "--dtype", DTYPE, "--enforce-eager", "--enable-prefix-caching",
            "--block-size", str(BLOCK), "--num-gpu-blocks-override", str(cache_tokens // BLOCK),
            "--max-model-len", str(CONTEXT), "--max-num-seqs", str(AT_ONCE), "--max-num-batched-tokens", "256",
            "--disable-uvicorn-access-log",
        ]  # fmt: skip
        if socket_dir is not None:
            command += ["--kv-transfer-config", json.dumps(_connector(engine_id, socket_dir, options or {}))]
        super().__init__(engine_id, [*command, *flags], folder, env)

    async def up(self, http):
        """Returns when it answers.  Raises Failed if it ends, or takes too long."""
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            self.check()
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with http.get(f"{self.url}/health", timeout=aiohttp.ClientTimeout(total=5)) as reply:
                    if reply.status == 200:
                        return
            await asyncio.sleep(0.5)
        raise Failed(f"{self.name} does not serve after {START_S:.0f} s; {self.last_words()}")


def _connector(engine_id, socket_dir, options):
    return {
        "kv_connector": "LarderConnector", "kv_connector_module_path": "kvlarder.vllm", "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"engine_id": engine_id, "socket_dir": socket_dir, "stats_interval_s": 0.1, **options},
    }  # fmt: skip


class Router(Process):
    """The router in front of servers."""

    def __init__(self, policy, servers, socket_dir, prefill_rate, folder, env):
        flags = [flag for server in servers for flag in ("--server", f"{server.engine_id}={server.url}")]
        command = [
            sys.executable, "-m", "kvlarder.router", *flags, "--listen", "127.0.0.1:0", "--socket-dir", socket_dir,
            "--policy", policy, "--prefill-rate", f"{prefill_rate:.0f}", "--server-requests", str(AT_ONCE),
        ]  # fmt: skip
        super().__init__("router", command, folder, env)

    async def up(self):
        """Returns its URL once it listens.  Raises Failed if it ends, or takes too long."""
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            self.check()
            if found := re.search(r"listens at (\S+),", self.output()):
                return f"http://{found[1]}"
            await asyncio.sleep(0.1)
        raise Failed(f"the router does not listen after {START_S:.0f} s; {self.last_words()}")
