// An engine of the end-to-end tests: a separate process that uses only the public client library.
//
//   engine_process SOCKET_DIR MODE(mapped|staged|stream) VERB SEED
//
// Verbs, with the lines that each prints:
//   put      stores blocks SEED .. SEED+31 once, then prints "done"
//   get      reads them once and checks every byte, then prints "done"
//   want     prints "ready", waits for SIGCONT, does the same as get in one call, prints "done"
//   read     prints "ready", reads random blocks and checks every byte until SIGTERM, prints "read
//   N"
//   fill     prints "ready", stores random blocks until SIGTERM
//   churn    stores, reads, holds leases, reserves and half-writes at random, and never ends by
//            itself; prints "ready" once it holds something
//   hold     holds one lease and, if mapped, one half-written reservation, both with a short
//            deadline; prints "ready" once it holds them
// Signals, for churn and hold: after SIGUSR1 the process closes all connections, prints "closed",
// lives on and keeps writing into what it reserved, as a DMA under way would; on SIGUSR2 it forks a
// child that keeps the connections.
// Exit codes: 0 the verb has ended; 1 a call failed that must not fail; 3 bytes were wrong.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "client/client.h"
#include "tests/e2e/support/test_blocks.h"

namespace larder::e2e {
namespace {

volatile std::sig_atomic_t end_asked = 0, close_asked = 0, fork_asked = 0, go_asked = 0;

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

[[noreturn]] void Die(int code, const std::string& why) {
  std::fprintf(stderr, "engine_process %d: %s\n", static_cast<int>(getpid()), why.c_str());
  _exit(code);
}

class Engine {
 public:
  Engine(const std::string& dir, WriteMode mode, uint32_t seed) : random_(seed) {
    auto client = Client::Connect({.socket_dir = dir});
    if (!client.ok()) Die(1, client.status().ToString());
    client_ = *std::move(client);
    auto session =
        client_->Attach({.engine_id = "e2e", .write_mode = mode, .staging_bytes = MiB(8)});
    if (!session.ok()) Die(1, session.status().ToString());
    session_ = *std::move(session);
    if (session_->write_mode() != mode) Die(1, session_->write_mode_reason());
    const auto variants = session_->Register({&maker_.content, 1}, {&maker_.variant, 1});
    if (!variants.ok()) Die(1, variants.status().ToString());
    variant_ = variants->front();
  }

  // Half a page to half a MiB per layer, depending on the block's number.
  static size_t LayerBytes(uint32_t number) { return 2000 + size_t{number} * 7919 % 500'000; }

  BlockStatus Put(uint32_t number) {
    const FilledBlock block(maker_, maker_.Block(number), LayerBytes(number));
    const PutBlock put = block.ToPut();
    const auto status = session_->Put(variant_, {&put, 1}, {.hash = random_() % 2 == 0});
    return status.ok() ? status->front() : BlockStatus::kCancelled;
  }
  BlockStatus Get(uint32_t number) { return GetAll({number}).front(); }
  // Reads all of them in one call.
  std::vector<BlockStatus> GetAll(const std::vector<uint32_t>& numbers) {
    std::vector<LayerSpace> spaces;
    std::vector<GetBlock> gets;
    for (const uint32_t number : numbers) {
      spaces.emplace_back(maker_.Block(number).digest, maker_.variant.layers, LayerBytes(number));
      gets.push_back(spaces.back().ToGet());
    }
    const auto status = session_->Get(variant_, gets);
    if (!status.ok()) return std::vector(numbers.size(), BlockStatus::kCancelled);
    for (size_t i = 0; i < numbers.size(); ++i) {
      if ((*status)[i] == BlockStatus::kDamaged) Die(3, "a block reads as damaged");
      const std::vector<std::vector<std::byte>>& layers = spaces[i].layers();
      for (uint32_t l = 0; l < layers.size() && (*status)[i] == BlockStatus::kOk; ++l) {
        if (!LayerIsRight(gets[i].digest, l, layers[l]))
          Die(3, "wrong bytes of block " + std::to_string(numbers[i]));
      }
    }
    return *status;
  }
  // Takes a lease on a block, checks the bytes of its first layer, and keeps the lease.
  void HoldLease(uint32_t number, const CallOptions& options) {
    const TestBlock block = maker_.Block(number);
    auto lease = session_->Acquire(variant_, {&block.digest, 1}, options);
    if (!lease.ok() || lease->status(0) != BlockStatus::kOk) return;
    const std::span<const std::byte> view = lease->View(0);
    const size_t bytes = LayerBytes(number);
    const bool right = view.size() >= bytes && LayerIsRight(block.digest, 0, view.first(bytes));
    if (lease->Valid() && !right)
      Die(3, "wrong bytes in a view of block " + std::to_string(number));
    leases_.push_back(*std::move(lease));
  }
  // Reserves an extent and fills half of it with bytes that must never appear in a block.
  void HoldReservation(uint32_t number, const CallOptions& options) {
    const ByteCount bytes(LayerBytes(number));
    auto reservation = session_->Reserve({&bytes, 1}, options);
    if (!reservation.ok()) return;
    const std::span<std::byte> room = reservation->Bytes(0);
    std::memset(room.data(), 0xDD, room.size() / 2);
    reservations_.push_back(*std::move(reservation));
  }
  // Writes these bytes again, into all of every reserved extent.
  void Scribble() {
    for (const Reservation& reservation : reservations_) {
      const std::span<std::byte> room = reservation.Bytes(0);
      std::memset(room.data(), 0xDD, room.size());
    }
  }
  void DropOldest() {
    if (leases_.size() > 3) leases_.pop_front();
    if (reservations_.size() > 3) reservations_.pop_front();
  }
  [[nodiscard]] bool HoldsAll() const {
    return !leases_.empty() &&
           (session_->write_mode() != WriteMode::kMapped || !reservations_.empty());
  }
  [[nodiscard]] uint32_t Random(uint32_t below) { return static_cast<uint32_t>(random_() % below); }

 private:
  const BlockMaker maker_;
  std::mt19937 random_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Session> session_;
  VariantHandle variant_;
  std::deque<Lease> leases_;
  std::deque<Reservation> reservations_;
};

// Shuts down every socket, while this process lives on and keeps its mappings.
void CloseAllSockets() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::atoi(entry.path().filename().c_str());
    struct stat file {};
    if (fd > 2 && fstat(fd, &file) == 0 && S_ISSOCK(file.st_mode)) shutdown(fd, SHUT_RDWR);
  }
}

void ObeySignals(Engine& engine) {
  if (std::exchange(fork_asked, 0) != 0 && _Fork() == 0) {
    for (;;) pause();  // the child's copies of the sockets stay open
  }
  if (close_asked != 0) {
    CloseAllSockets();
    Say("closed");
    for (;;) {
      engine.Scribble();
      usleep(1000);
    }
  }
}

constexpr uint32_t kNumbers = 400;  // blocks that churn and read choose from

void Churn(Engine& engine) {
  constexpr std::chrono::milliseconds kDeadline{30'000};
  bool said = false;
  for (;;) {
    ObeySignals(engine);
    const uint32_t number = engine.Random(kNumbers);
    switch (engine.Random(5)) {
      case 0:
      case 1:
        static_cast<void>(engine.Put(number));
        break;
      case 2:
        static_cast<void>(engine.Get(number));
        break;
      case 3:
        engine.HoldLease(number, {.deadline = kDeadline});
        break;
      default:
        engine.HoldReservation(number, {.deadline = kDeadline});
        break;
    }
    engine.DropOldest();
    if (!said && engine.HoldsAll()) {
      said = true;
      Say("ready");
    }
  }
}

// A daemon serves before all slabs of its pool are online.  Until then a call may return kFull, so
// it is repeated.
BlockStatus PutOrGet(Engine& engine, const std::string& verb, uint32_t number) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (;;) {
    const BlockStatus status = verb == "put" ? engine.Put(number) : engine.Get(number);
    if (status != BlockStatus::kFull || std::chrono::steady_clock::now() > until) return status;
    usleep(1000);
  }
}

int Run(const std::string& dir, WriteMode mode, const std::string& verb, uint32_t seed) {
  Engine engine(dir, mode, seed);
  if (verb == "churn") Churn(engine);
  if (verb == "hold") {
    const CallOptions brief{.life = std::chrono::seconds(1)};
    if (engine.Put(seed) == BlockStatus::kCancelled) Die(1, "put failed");
    engine.HoldLease(seed, brief);
    engine.HoldReservation(seed, brief);
    if (!engine.HoldsAll()) Die(1, "holds nothing");
    Say("ready");
    for (;;) {
      ObeySignals(engine);
      usleep(1000);
    }
  }
  if (verb == "want") {
    std::vector<uint32_t> numbers(32);
    std::iota(numbers.begin(), numbers.end(), seed);
    Say("ready");
    while (go_asked == 0) usleep(1000);
    for (const BlockStatus status : engine.GetAll(numbers))
      if (status != BlockStatus::kOk) Die(1, std::string("want is ") + ToString(status));
    Say("done");
    return 0;
  }
  if (verb == "put" || verb == "get") {
    for (uint32_t number = seed; number < seed + 32; ++number) {
      const BlockStatus status = PutOrGet(engine, verb, number);
      if (status != BlockStatus::kOk) Die(1, verb + " is " + ToString(status));
    }
    Say("done");
    return 0;
  }
  uint64_t read = 0;
  Say("ready");
  while (end_asked == 0) {
    const uint32_t number = engine.Random(kNumbers);
    if (verb == "fill") {
      // From many names, so that few puts are duplicates and the pool stays full.
      static_cast<void>(engine.Put(engine.Random(1u << 20)));
    } else {
      read += engine.Get(number) == BlockStatus::kOk ? 1 : 0;
    }
  }
  if (verb == "read") Say("read " + std::to_string(read));
  return 0;
}

}  // namespace
}  // namespace larder::e2e

int main(int argc, char** argv) {
  using larder::WriteMode;
  if (argc != 5) return 2;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::signal(SIGTERM, [](int) { larder::e2e::end_asked = 1; });
  std::signal(SIGCONT, [](int) { larder::e2e::go_asked = 1; });
  std::signal(SIGUSR1, [](int) { larder::e2e::close_asked = 1; });
  std::signal(SIGUSR2, [](int) { larder::e2e::fork_asked = 1; });
  const std::string mode = argv[2];
  return larder::e2e::Run(argv[1],
                          mode == "mapped"   ? WriteMode::kMapped
                          : mode == "staged" ? WriteMode::kStaged
                                             : WriteMode::kStream,
                          argv[3], static_cast<uint32_t>(std::strtoul(argv[4], nullptr, 10)));
}
