"""python -m kvlarder doctor: would an engine on this machine work with Larder, and if not, what is to be done?"""

import argparse
import os
import pathlib
import socket
import struct
import subprocess
import sys

import kvlarder


def socket_folder(given):
    """Returns the folder that kvlarder.connect uses (client/client.h, ClientOptions)."""
    if given or os.environ.get("LARDER_SOCKET_DIR"):
        return given or os.environ["LARDER_SOCKET_DIR"]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return "/run/larder" if os.path.isdir("/run/larder") or not runtime else f"{runtime}/larder"


class Doctor:
    """Prints a line for each thing that it looked at.  `healthy` is False once an engine would not work."""

    def __init__(self, folder, tenant):
        self._folder, self._tenant = pathlib.Path(folder), tenant
        self.healthy = True

    def say(self, what, found, todo=None):
        print(f"{'ok  ' if todo is None else 'BAD '} {what}: {found}")
        if todo is not None:
            print(f"       {todo}")
            self.healthy = False

    def note(self, what, found):
        print(f"note {what}: {found}")

    def run(self):
        self.say("kvlarder", f"{kvlarder.__version__}, Python {sys.version.split()[0]}, {os.path.dirname(kvlarder.__file__)}")
        if self.sockets():
            self.daemon()
            self.session()
        self.memory()
        self.vllm()
        self.learnt()
        self.gpu()
        print("An engine would work." if self.healthy else "An engine would start, and compute everything itself.")
        return 0 if self.healthy else 1

    def sockets(self):
        try:
            return self._sockets()
        except OSError as error:
            self.say(
                "sockets",
                f"user {os.getuid()} may not look into {self._folder} ({error.strerror})",
                "larderd's sockets must lie in a folder that the user may search, or be given by LARDER_SOCKET_DIR",
            )
            return False

    def _sockets(self):
        if not self._folder.is_dir():
            self.say("sockets", f"there is no folder {self._folder}", "start larderd, or set LARDER_SOCKET_DIR to its --socket-dir")
            return False
        for name in ("data.sock", "sideband.sock"):
            path = self._folder / name
            if not path.exists():
                self.say("sockets", f"there is no {path}", "start larderd with --socket-dir of this folder")
                return False
            if not os.access(path, os.R_OK | os.W_OK):
                owner = path.stat()
                self.say(
                    "sockets",
                    f"user {os.getuid()} may not open {path} (owner {owner.st_uid}:{owner.st_gid}, mode {owner.st_mode & 0o777:o})",
                    "add the user to the socket's group, or give larderd another --data-socket-mode",
                )
                return False
        self.say("sockets", self._folder)
        return True

    def daemon(self):
        try:
            with socket.socket(socket.AF_UNIX) as peer:
                peer.settimeout(5)
                peer.connect(str(self._folder / "data.sock"))
                pid, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        except OSError as error:
            self.say("daemon", f"nothing answers at {self._folder}/data.sock ({error})", "start larderd; its log says why it ended")
            return
        version = "of a version that cannot be seen from here"
        try:
            if uid not in (0, os.getuid()):
                raise OSError("another user's program is not run")
            found = subprocess.run([f"/proc/{pid}/exe", "--version"], capture_output=True, timeout=5, check=False, text=True)
            version = found.stdout.strip() or version
        except (OSError, subprocess.TimeoutExpired):
            pass
        self.say("daemon", f"{version}, process {pid} of user {uid}")
        if kvlarder.__version__ not in version and "cannot" not in version:
            self.note("versions", f"the package is {kvlarder.__version__}; both work together, but new features need both")

    def session(self):
        try:
            session = kvlarder.connect(str(self._folder), tenant=self._tenant).attach(f"kvlarder-doctor-{os.getpid()}")
        except (OSError, RuntimeError, ValueError) as error:
            self.say("session", error, "the sentence says what to do; docs/troubleshooting.md has more")
            return
        with session:
            for what, mode, reason in (
                ("writes", session.write_mode, session.write_mode_reason),
                ("reads", session.read_mode, session.read_mode_reason),
            ):
                self.say(what, mode + (f", because {reason}" if reason else ""))
                if mode != "mapped":
                    self.note(what, "bytes are copied once more; docs/security.md says which users may map the pool")
            if session.makes_promises:
                self.say("promises", "found blocks are held until they are read")
            else:
                self.say("promises", "this larderd makes none", "update larderd: an engine's lookups would find nothing")
            self.round_trip(session)

    def round_trip(self, session):
        content = kvlarder.ContentSpec("kvlarder-doctor", str(os.getpid()))
        try:
            variant = session.register(
                [content], [kvlarder.VariantSpec(dtype="u8", layout="doctor/1/any", block_tokens=16, layers=1)]
            )[0]
            seed, tokens, data, back = session.seed(content), list(range(16)), os.urandom(65536), bytearray(65536)
            digest = kvlarder.chain(seed, tokens)[0]
            stored = session.put(variant, [kvlarder.PutBlock(digest, seed, tokens, [data])])[0]
            if stored != kvlarder.BlockStatus.OK:
                self.say("round trip", f"a block was not stored: {stored.name}", "see larderctl status: is the pool full?")
                return
            loaded = session.get(variant, [kvlarder.GetBlock(digest, [back])])[0]
            if loaded == kvlarder.BlockStatus.OK and bytes(back) == data:
                self.say("round trip", "a block came back as it was stored")
            else:
                self.say("round trip", f"a block did not come back: {loaded.name}", "please report this with larderd's log")
        except (OSError, RuntimeError, ValueError) as error:
            self.say("round trip", error, "larderd's log says more")

    def memory(self):
        limit = pathlib.Path("/proc/self/limits").read_text().split("Max locked memory")[1].split()[0]
        self.note("locked memory", f"this process may lock {limit} bytes; only engines with a GPU need more than 64 MiB")

    def vllm(self):
        from kvlarder import interfaces

        try:
            from kvlarder.vllm import api
        except ImportError as error:
            self.note("vLLM", str(error).split(";")[0])
            return
        found = list(interfaces.problems(api.KVConnectorBase_V1, api.EXPECTED))
        if found:
            self.say("vLLM", f"{api.vllm.__version__} does not fit: {'; '.join(found)}", "docs/engines/vllm.md has the versions that do")
        else:
            self.say("vLLM", f"{api.vllm.__version__} fits")

    def learnt(self):
        from kvlarder.vllm import profiles

        for engine, what in profiles.described():
            self.note(f"learnt of {engine}", what)

    def gpu(self):
        if not os.path.exists("/dev/nvidiactl"):
            self.note("GPU", "none, and none is needed")
            return
        driver = pathlib.Path("/proc/driver/nvidia/version")
        text = driver.read_text().splitlines()[0] if driver.exists() else "the driver does not say its version"
        self.note("GPU", f"{text}; kvlarder.hf serves it, and the connector of vLLM serves engines on CPUs only")


def main():
    parser = argparse.ArgumentParser(prog="python -m kvlarder", description="Larder for Python")
    verbs = parser.add_subparsers(dest="verb", required=True)
    doctor = verbs.add_parser(
        "doctor",
        help="says whether an engine on this machine would work with Larder",
        description="Says whether an engine on this machine would work with Larder, and what to do if not. "
        "Exit code 0: it would. 1: it would not.",
    )
    doctor.add_argument("--socket-dir", default="", help="folder of larderd's sockets (default: as kvlarder.connect)")
    doctor.add_argument("--tenant", default="", help="tenant to attach as (default: this user's own)")
    arguments = parser.parse_args()
    return Doctor(socket_folder(arguments.socket_dir), arguments.tenant).run()


if __name__ == "__main__":
    sys.exit(main())
