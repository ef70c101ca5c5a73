"""larderd as a child process, with its own folder."""

import os
import pathlib
import signal
import subprocess
import tempfile
import time


class Larderd:
    """When the constructor returns, the daemon serves, with the whole of its pool."""

    def __init__(self, path, *flags):
        self.folder = tempfile.TemporaryDirectory()
        self.socket_dir = self.folder.name
        self.command = [path, *flags, "--socket-dir", self.socket_dir, "--metrics-listen", ""]
        self.log = os.path.join(self.socket_dir, "log")
        self.start()
        self.await_pool()

    def await_pool(self):
        """Waits until the whole pool can be used.  A daemon refuses blocks for some time after `start`."""
        while True:
            with open(self.log, encoding="utf-8") as file:
                said = file.read()
            if "pool_online" in said:
                return
            if self.process.poll() is not None or "pool_stalled" in said:
                raise RuntimeError(f"larderd has no pool: {said}")
            time.sleep(0.01)

    def start(self):
        """Starts the daemon that the constructor started, again."""
        ready = os.path.join(self.socket_dir, "data.sock")
        if os.path.exists(ready):  # of one that was killed
            os.unlink(ready)
        with open(self.log, "wb") as file:
            self.process = subprocess.Popen(self.command, stdout=file, stderr=file)
        while not os.path.exists(ready):
            if self.process.poll() is not None:
                with open(self.log, encoding="utf-8") as file:
                    raise RuntimeError(f"larderd ended: {file.read()}")
            time.sleep(0.01)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        """Stops the process with SIGSTOP.  Returns when it has stopped."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def end(self):
        self.process.terminate()
        self.go_on()  # a stopped process would never end
        self.process.wait()
        self.folder.cleanup()

    def __enter__(self):
        return self.socket_dir

    def __exit__(self, *_):
        self.end()


def damage(folder, rolls, reach=1 << 20):
    """Changes bytes among the first `reach` of some data files of a disk tier.  Returns how many."""
    changed = 0
    for path in pathlib.Path(folder).glob("shard-*/*"):
        used = os.stat(path).st_blocks * 512
        if path.is_file() and path.name != "FORMAT" and used and rolls.random() < 0.5:
            with open(path, "r+b") as file:
                for _ in range(20):
                    file.seek(rolls.randrange(min(used, reach)))
                    file.write(b"\x5a")
                    changed += 1
    return changed
