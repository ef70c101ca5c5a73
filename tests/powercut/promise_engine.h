// Engines and a router at a daemon with a disk, which keep a ledger of what they were promised:
// blocks reported durable, pins answered OK, blocks whose Clear was answered OK.  Also an
// examination of what another daemon has of it.
//
//   Ledger ledger;
//   PromiseEngine engine(daemon, ledger, seed, found);   // works in its own threads
//   Promises promised = ledger.At([&] { daemon.Signal(SIGSTOP); });
//   Found found = Look(next_daemon);  // over what the disk had then
//
// Each version of a block has different bytes.  A name is put again only after it was cleared,
// because the first writer wins.
// Thread-safety: none, except for the work of its own threads.
// Lifecycle: the daemon must outlive this object, or be killed after StopSoon.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "storage/mutex.h"
#include "tests/e2e/support/daemon_process.h"
#include "tests/powercut/promises.h"

namespace larder::powercut {

inline constexpr uint32_t kNames = 120;  // all blocks together take at most 15 MiB

// What a daemon has, by number.
struct Found {
  std::string failure;  // empty if everything was examined
  std::vector<std::optional<uint32_t>> blocks =
      std::vector<std::optional<uint32_t>>(kNames);  // 0 means the bytes of no version
  std::vector<bool> pinned = std::vector<bool>(kNames);
  uint64_t damaged = 0;  // blocks that were read as damaged
};

// Reads all blocks and ends all pins.  REQUIRES: the daemon finishes its recovery within 30 s.
[[nodiscard]] Found Look(e2e::DaemonProcess& daemon);

class PromiseEngine {
 public:
  // `found` is what the daemon has when this begins.  New versions are numbered from `version` + 1.
  PromiseEngine(e2e::DaemonProcess& daemon, Ledger& ledger, uint64_t seed, uint32_t version,
                const Found& found);
  ~PromiseEngine();
  PromiseEngine(const PromiseEngine&) = delete;
  PromiseEngine& operator=(const PromiseEngine&) = delete;

  // From now on calls may fail, and no new calls begin.
  void StopSoon() { stopping_ = true; }
  // Returns what failed before StopSoon: failed calls, and promises that were not given.
  [[nodiscard]] std::vector<std::string> failures() const LARDER_EXCLUDES(mu_);

 private:
  class Worker;
  static constexpr uint32_t kWorkers = 3;  // worker n % kWorkers handles number n

  std::atomic<bool> stopping_{false};
  mutable Mutex mu_;
  std::vector<std::string> failures_ LARDER_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;
};

// The verdicts of all cuts or prefixes.
struct Tally {
  uint64_t looks = 0, promised = 0, pins = 0, lost = 0, pins_lost = 0, back = 0, pins_back = 0,
           wrong = 0, failed_starts = 0, set_aside = 0, damaged = 0;
};

// Starts a daemon over a disk, examines it and judges.  Adds a test failure for each broken
// promise.
[[nodiscard]] Found StartAndJudge(const std::string& disk, const Promises& promises, Tally* tally);
// Counts everything that was found as promised: the next daemon must have it too.  Pins were ended
// by Look.
void Tell(const Found& found, Ledger* ledger);
[[nodiscard]] std::vector<std::string> FlagsFor(const std::string& disk);
void Print(const char* what, const Tally& tally);

}  // namespace larder::powercut
