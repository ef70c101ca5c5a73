// A process of another uid that bypasses file modes (CAP_DAC_OVERRIDE and other capabilities that
// the root of a container has by default) and that tries to write into the pool by every descriptor
// and every mapping that it can get.
//
//   memory_attacker SOCKET_DIR DAEMON_PID UID host|namespaces
//
// It attaches as an engine, reads, and asks the sideband for everything that it gives; with
// `namespaces` it does so as root of its own user, mount and PID namespaces.
// It prints a line for each write that succeeded, and one with the descriptors that it held.
// Exit codes: 0 it could write only its own memory; 1 an earlier step failed; 2 this host does not
// let it make the namespaces; 3 it wrote.
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "proto/frames/file_descriptor.h"
#include "proto/frames/sideband_frames.h"
#include "proto/frames/sideband_packet.h"
#include "tests/e2e/support/die_with.h"
#include "tests/e2e/support/test_blocks.h"

namespace larder::e2e {
namespace {

constexpr uint32_t kSlabsAsked = 64;
constexpr size_t kPattern = 4096;
constexpr int kAnswerMs = 30'000;

[[noreturn]] void Die(int code, const std::string& why) {
  std::printf("memory_attacker: %s (errno %d)\n", why.c_str(), errno);
  std::fflush(stdout);
  _exit(code);
}
void Need(bool ok, const char* what) {
  if (!ok) Die(1, what);
}

// Gives the process Docker's default capabilities, except those to become any user: a process that
// can become the daemon's user has all of the daemon's rights.
void BecomeWithCapabilities(uid_t uid) {
  Need(prctl(PR_SET_KEEPCAPS, 1) == 0, "keepcaps");
  Need(setgroups(0, nullptr) == 0 && setgid(uid) == 0 && setuid(uid) == 0, "setuid");
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  std::array<__user_cap_data_struct, 2> data{};
  for (const int cap : {CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, CAP_KILL, CAP_MKNOD,
                        CAP_NET_RAW, CAP_SYS_CHROOT}) {
    data[cap / 32].permitted |= 1u << (cap % 32);
    data[cap / 32].effective |= 1u << (cap % 32);
  }
  Need(syscall(SYS_capset, &header, data.data()) == 0, "capset");
  // The change of uid made the process undumpable, and so took its own /proc away from it.
  Need(prctl(PR_SET_DUMPABLE, 1) == 0, "dumpable");
}

void WriteFile(const char* path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.flush();
  if (!file) Die(2, absl::StrCat("cannot write ", path));
}

// Continues in a child that is root of the three namespaces and init of the PID namespace.  The
// child ends with this process.
void EnterNamespaces(uid_t uid) {
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID) != 0) Die(2, "unshare");
  WriteFile("/proc/self/setgroups", "deny");
  WriteFile("/proc/self/uid_map", absl::StrCat("0 ", uid, " 1"));
  WriteFile("/proc/self/gid_map", absl::StrCat("0 ", uid, " 1"));
  const pid_t child = fork();
  Need(child >= 0, "fork");
  if (child > 0) {
    int status = 0;
    Need(waitpid(child, &status, 0) == child, "waitpid");
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
}

// ---- what it can get

class Sideband {
 public:
  explicit Sideband(const std::string& path)
      : socket_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    Need(connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0,
         "connect to the sideband");
    const auto challenge = Ask(HelloFrame{}, {});
    Need(std::holds_alternative<ChallengeFrame>(challenge), "no CHALLENGE");
    const Nonce nonce = std::get<ChallengeFrame>(challenge).nonce;
    const Frame welcome = Ask(ChallengeReplyFrame{.nonce = nonce}, {.credentials = true});
    Need(std::holds_alternative<WelcomeFrame>(welcome), "no WELCOME");
  }
  // Sends a frame and returns the answer.  Keeps the descriptors that come with it.
  Frame Ask(const Frame& frame, const SendExtras& extras) {
    Need(SendPacket(socket_.get(), EncodeFrame(frame).bytes(), extras) == SendResult::kSent,
         "send");
    pollfd answered{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    int ready = 0;
    do {
      ready = poll(&answered, 1, kAnswerMs);
    } while (ready < 0 && errno == EINTR);
    Need(ready == 1, "no answer of the sideband");
    ReceivedPacket packet;
    Need(ReceivePacket(socket_.get(), packet) == ReceiveResult::kPacket, "receive");
    for (FileDescriptor& one : packet.descriptors) held_.push_back(std::move(one));
    auto answer = DecodeFrame(packet.bytes());
    Need(answer.ok(), "an answer that is no frame");
    return *std::move(answer);
  }

 private:
  const FileDescriptor socket_;
  std::vector<FileDescriptor> held_;
};

std::string NameOf(int fd) {
  std::array<char, 256> name{};
  const std::string link = absl::StrCat("/proc/self/fd/", fd);
  const ssize_t size = readlink(link.c_str(), name.data(), name.size() - 1);
  return size < 0 ? "" : std::string(name.data(), static_cast<size_t>(size));
}
// Staging segments, which the daemon shares with this process to be written.
bool Own(const std::string& name) { return name.find("larder-staging") != std::string::npos; }
bool Shared(const std::string& name) { return name.find("memfd:") != std::string::npos; }

// ---- the attempts.  Each returns whether it wrote.

const std::array<std::byte, kPattern>& Pattern() {
  static const auto pattern = [] {
    std::array<std::byte, kPattern> bytes{};
    bytes.fill(std::byte{0xA5});
    return bytes;
  }();
  return pattern;
}

bool WritesBy(int fd, off_t size) {
  bool wrote = false;
  for (off_t at = 0; at < size; at += size / 8 + 4096)
    wrote = pwrite(fd, Pattern().data(), kPattern, at) > 0 || wrote;
  iovec part{.iov_base = const_cast<std::byte*>(Pattern().data()), .iov_len = kPattern};
  wrote = pwritev(fd, &part, 1, 0) > 0 || wrote;
  wrote = write(fd, Pattern().data(), kPattern) > 0 || wrote;
  return wrote;
}

bool Scribble(std::byte* at, size_t size) {
  for (size_t i = 0; i < size; i += size / 8 + 4096) at[i] = std::byte{0x5A};
  return true;
}

bool MapsBy(int fd, off_t size) {
  const auto bytes = static_cast<size_t>(size);
  for (const int protection :
       {PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE | PROT_EXEC}) {
    void* base = mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
    if (base != MAP_FAILED) return Scribble(static_cast<std::byte*>(base), bytes);
  }
  void* base = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return false;
  bool wrote = mprotect(base, bytes, PROT_READ | PROT_WRITE) == 0 &&
               Scribble(static_cast<std::byte*>(base), bytes);
  wrote = madvise(base, bytes, MADV_REMOVE) == 0 || wrote;
  munmap(base, bytes);
  return wrote;
}

bool Shrinks(int fd, off_t size) {
  bool did = ftruncate(fd, 0) == 0;
  did = ftruncate(fd, size / 2) == 0 || did;
  did = ftruncate(fd, size * 2) == 0 || did;
  for (const int mode : {FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE,
                         FALLOC_FL_COLLAPSE_RANGE}) {
    did = fallocate(fd, mode, 0, size) == 0 || did;
  }
  return did;
}

bool TryDescriptor(int fd) {
  struct stat file {};
  if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode) || file.st_size == 0) return false;
  bool wrote = WritesBy(fd, file.st_size);
  wrote = MapsBy(fd, file.st_size) || wrote;
  wrote = Shrinks(fd, file.st_size) || wrote;
  (void)fchmod(fd, 0777);
  (void)fchown(fd, getuid(), getgid());
  const std::string again = absl::StrCat("/proc/self/fd/", fd);
  for (const int how : {O_RDWR, O_WRONLY, O_RDWR | O_TRUNC, O_WRONLY | O_APPEND}) {
    const FileDescriptor other(open(again.c_str(), how | O_CLOEXEC));
    if (!other) continue;
    wrote = WritesBy(other.get(), file.st_size) || wrote;
    wrote = MapsBy(other.get(), file.st_size) || wrote;
    wrote = Shrinks(other.get(), file.st_size) || wrote;
  }
  return wrote;
}

struct Mapping {
  uint64_t begin = 0, end = 0;
  std::string name;
};

std::vector<Mapping> SharedMappings() {
  std::vector<Mapping> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string range, rest;
    words >> range;
    std::getline(words, rest);
    if (!Shared(rest)) continue;
    Mapping one{.name = rest};
    char dash = 0;
    std::istringstream(range) >> std::hex >> one.begin >> dash >> one.end;
    found.push_back(one);
  }
  return found;
}

// Tries to write through a mapping that the client library made.
bool TryMapping(const Mapping& one) {
  auto* const base = reinterpret_cast<std::byte*>(one.begin);
  const size_t size = one.end - one.begin;
  bool wrote = mprotect(base, size, PROT_READ | PROT_WRITE) == 0 && Scribble(base, size);
  wrote = madvise(base, size, MADV_REMOVE) == 0 || wrote;
  iovec local{.iov_base = const_cast<std::byte*>(Pattern().data()), .iov_len = kPattern};
  iovec remote{.iov_base = base, .iov_len = kPattern};
  wrote = process_vm_writev(getpid(), &local, 1, &remote, 1, 0) > 0 || wrote;
  const FileDescriptor self(open("/proc/self/mem", O_RDWR | O_CLOEXEC));
  if (self)  // a write here can bypass the protection of a mapping
    wrote =
        pwrite(self.get(), Pattern().data(), kPattern, static_cast<off_t>(one.begin)) > 0 || wrote;
  void* moved = mremap(base, 0, size, MREMAP_MAYMOVE);  // a second mapping of the same pages
  if (moved != MAP_FAILED && mprotect(moved, size, PROT_READ | PROT_WRITE) == 0)
    wrote = Scribble(static_cast<std::byte*>(moved), size) || wrote;
  return wrote;
}

// Tries to reach the daemon's memory and descriptors from outside.
bool TryDaemon(pid_t daemon) {
  bool wrote = false;
  const std::string proc = absl::StrCat("/proc/", daemon);
  const FileDescriptor memory(open((proc + "/mem").c_str(), O_RDWR | O_CLOEXEC));
  wrote = static_cast<bool>(memory);
  for (int fd = 0; fd < 256; ++fd) {
    const FileDescriptor theirs(open(absl::StrCat(proc, "/fd/", fd).c_str(), O_RDWR | O_CLOEXEC));
    if (theirs && Shared(NameOf(theirs.get())) && !Own(NameOf(theirs.get()))) wrote = true;
  }
  uint64_t word = 0;
  iovec local{.iov_base = &word, .iov_len = sizeof word};
  for (const uint64_t at : {uint64_t{0x10000}, uint64_t{0x400000}, uint64_t{0x7ffff0000000}}) {
    iovec remote{.iov_base = reinterpret_cast<void*>(at), .iov_len = sizeof word};
    const ssize_t written = process_vm_writev(daemon, &local, 1, &remote, 1, 0);
    wrote = wrote || written > 0 || (written < 0 && errno == EFAULT);  // EFAULT: access was granted
  }
  return wrote;
}

// ---- one attack

void ReadSome(Session& session) {
  const BlockMaker maker;
  const auto variants = session.Register({&maker.content, 1}, {&maker.variant, 1});
  Need(variants.ok(), "register");
  std::vector<Digest> names;
  for (uint32_t i = 0; i < 8; ++i) names.push_back(maker.Block(i).digest);
  const auto lease = session.Acquire(variants->front(), names);
  Need(lease.ok(), "acquire");
  for (size_t i = 0; i < lease->size(); ++i) {
    Need(lease->status(i) == BlockStatus::kOk, "a block that is not there");
    Need(LayerIsRight(names[i], 0, lease->View(i).first(kPageBytes)), "wrong bytes");
  }
}

int Attack(const std::string& dir, pid_t daemon) {
  auto client = Client::Connect({.socket_dir = dir});
  Need(client.ok(), "connect");
  auto session = (*client)->Attach({.engine_id = "attacker"});
  Need(session.ok(), "attach");
  std::printf("reads %s, writes %s\n", wire::ToString((*session)->read_mode()),
              wire::ToString((*session)->write_mode()));
  ReadSome(**session);
  Sideband sideband(dir + "/sideband.sock");
  for (uint32_t slab = 0; slab < kSlabsAsked; ++slab) {
    for (const bool writable : {false, true})
      (void)sideband.Ask(
          MapSlabFrame{.slab = SlabId(static_cast<uint16_t>(slab)), .writable = writable}, {});
  }
  (void)sideband.Ask(MapSessionPageFrame{.session = (*session)->attached().session}, {});
  (void)sideband.Ask(MakeStagingFrame{.bytes = MiB(1)}, {});
  (void)sideband.Ask(OpenSessionFrame{}, {});
  int slabs = 0, wrote = 0;
  std::set<int> held;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    int fd = -1;
    if (absl::SimpleAtoi(entry.path().filename().string(), &fd)) held.insert(fd);
  }
  for (const int fd : held) {
    const std::string name = NameOf(fd);
    if (!Shared(name)) continue;
    slabs += name.find("larder-session") == std::string::npos && !Own(name) ? 1 : 0;
    const bool did = TryDescriptor(fd);
    if (did && !Own(name)) std::printf("WROTE by descriptor %s\n", name.c_str()), ++wrote;
  }
  for (const Mapping& one : SharedMappings()) {
    const bool did = TryMapping(one);
    if (did && !Own(one.name)) std::printf("WROTE by mapping %s\n", one.name.c_str()), ++wrote;
  }
  if (TryDaemon(daemon)) std::printf("REACHED the daemon\n"), ++wrote;
  std::printf("held %zu descriptors, %d of them of slabs; wrote by %d\n", held.size(), slabs,
              wrote);
  std::fflush(stdout);
  return wrote > 0 ? 3 : 0;
}

int Main(int argc, char** argv) {
  int daemon = 0, uid = 0;
  if (argc != 5 || !absl::SimpleAtoi(argv[2], &daemon) || !absl::SimpleAtoi(argv[3], &uid))
    Die(1, "usage: memory_attacker SOCKET_DIR DAEMON_PID UID host|namespaces");
  const pid_t parent = getppid();
  BecomeWithCapabilities(static_cast<uid_t>(uid));
  DieWith(parent);
  if (std::string(argv[4]) == "namespaces") EnterNamespaces(static_cast<uid_t>(uid));
  const int code = Attack(argv[1], daemon);
  std::fflush(stdout);
  _exit(code);  // without destructors, as the attack may have damaged this process's own memory
}

}  // namespace
}  // namespace larder::e2e

int main(int argc, char** argv) { return larder::e2e::Main(argc, argv); }
