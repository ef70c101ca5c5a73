"""larderd as a child process, with its own folder."""

import os
import signal
import subprocess
import tempfile
import time


class Larderd:
    """The daemon serves when the constructor returns."""

    def __init__(self, path, *flags):
        self.folder = tempfile.TemporaryDirectory()
        self.socket_dir = self.folder.name
        log = os.path.join(self.socket_dir, "log")
        with open(log, "wb") as file:
            self.process = subprocess.Popen(
                [path, *flags, "--socket-dir", self.socket_dir, "--metrics-listen", ""], stdout=file, stderr=file)
        while not os.path.exists(os.path.join(self.socket_dir, "data.sock")):
            if self.process.poll() is not None:
                with open(log, encoding="utf-8") as file:
                    raise RuntimeError(f"larderd ended: {file.read()}")
            time.sleep(0.01)

    def stop(self):
        """Stops the process with SIGSTOP.  Returns when it has stopped."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def end(self):
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()

    def __enter__(self):
        return self.socket_dir

    def __exit__(self, *_):
        self.end()
