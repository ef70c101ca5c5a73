// Engines and a router at a daemon with a disk, which keep a ledger of what they were promised:
// blocks told durable, pins answered OK, blocks whose Clear was answered OK.  And a look at what
// another daemon has of it.
//
//   Ledger ledger;
//   PromiseEngine engine(daemon, ledger, seed, found);   // works in threads of its own
//   Promises promised = ledger.At([&] { daemon.Signal(SIGSTOP); });
//   Found found = Look(next_daemon);  // over what the disk had then
//
// Versions of a block have bytes of their own; a name is put again only when it was cleared, for
// the first writer wins.
// Thread-safety: none, but for what its threads do.  The daemon must outlive it or be killed after
// StopSoon.
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

inline constexpr uint32_t kNames = 120;  // all of them, at most 15 MiB

// What a daemon has, by number.
struct Found {
  std::string failure;  // empty: all was looked at
  std::vector<std::optional<uint32_t>> blocks =
      std::vector<std::optional<uint32_t>>(kNames);  // 0: of no version
  std::vector<bool> pinned = std::vector<bool>(kNames);
  uint64_t damaged = 0;  // read as such
};

// Reads all blocks and ends all pins.  The daemon must be done with recovering within 30 s.
[[nodiscard]] Found Look(e2e::DaemonProcess& daemon);

class PromiseEngine {
 public:
  // `found`: what is there when it begins.  Its versions begin behind `version`.
  PromiseEngine(e2e::DaemonProcess& daemon, Ledger& ledger, uint64_t seed, uint32_t version,
                const Found& found);
  ~PromiseEngine();
  PromiseEngine(const PromiseEngine&) = delete;
  PromiseEngine& operator=(const PromiseEngine&) = delete;

  // From now on calls may fail, and no more are begun.
  void StopSoon() { stopping_ = true; }
  // What went wrong before: a call that failed, a promise that did not come.
  [[nodiscard]] std::vector<std::string> failures() const LARDER_EXCLUDES(mu_);

 private:
  class Worker;
  static constexpr uint32_t kWorkers = 3;  // number n is worker n % kWorkers's

  std::atomic<bool> stopping_{false};
  mutable Mutex mu_;
  std::vector<std::string> failures_ LARDER_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;
};

// What was judged, of all cuts or prefixes.
struct Tally {
  uint64_t looks = 0, promised = 0, pins = 0, lost = 0, pins_lost = 0, back = 0, pins_back = 0,
           wrong = 0, failed_starts = 0, set_aside = 0, damaged = 0;
};

// Starts a daemon over a disk, looks, and judges.  Adds a test failure for each promise that was
// broken.
[[nodiscard]] Found StartAndJudge(const std::string& disk, const Promises& promises, Tally* tally);
// All of it counts as promised: what one daemon found, the next must have.  Pins were ended by the
// look.
void Tell(const Found& found, Ledger* ledger);
[[nodiscard]] std::vector<std::string> FlagsFor(const std::string& disk);
void Print(const char* what, const Tally& tally);

}  // namespace larder::powercut
