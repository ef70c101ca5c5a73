// What a bystander says of each call that it made, as one packet of a pipe.
//
// Both ends are of this build: the struct's bytes are what travels, and a record is short enough
// for the kernel to write whole.  Times are of CLOCK_MONOTONIC, which all processes of a machine
// share.
// Ownership: values.  Thread-safety: none needed; Emit from any thread.
#pragma once

#include <unistd.h>

#include <array>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace larder::e2e {

enum class Op : uint8_t {
  kReady,    // it has stored what it will read, and begins
  kAttach,   // a new client: sideband, session, one block read
  kPut,      // a block that is new
  kGet,      // four that are read often
  kCold,     // one from the disk
  kLookup,   // of one block, on a connection that stays
  kConnect,  // a new connection, and a look-up on it
  kRestore,  // a prefix, loaded and computed
  kDurable,  // from a put until the daemon says that it is on disk
  kPlan,     // 2,048 names in one message, few of which are stored
  kFetch,    // of one block, by a byte stream: an engine without a sideband
  kPin,      // and unpin
  kWatch,    // the time between two messages of an event stream
  kHealth,   // asked by the test itself, on a new connection
  kCount,
};
[[nodiscard]] constexpr std::string_view ToString(Op op) {
  constexpr std::array<std::string_view, static_cast<size_t>(Op::kCount)> kNames = {
      "ready",   "attach",  "put",  "get",   "cold", "lookup", "connect",
      "restore", "durable", "plan", "fetch", "pin",  "watch",  "health"};
  return kNames[static_cast<size_t>(op)];
}

enum class Outcome : uint8_t {
  kOk,
  kComputed,  // a restore in which nothing was loaded, as the daemon did not answer soon enough
  kMissed,    // a block that is read all the time, or was promised to be on disk, is not there
  kFailed,    // an error, or a refusal
  kWrong,     // other bytes, or an answer that is not true
};

struct Record {
  Op op = Op::kReady;
  Outcome outcome = Outcome::kOk;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  std::array<char, 160> why{};  // ended by a NUL; empty when kOk
};
static_assert(sizeof(Record) <= PIPE_BUF, "or two threads would mix theirs");

[[nodiscard]] inline int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A call that began at `begin_ns` has ended.
inline void Emit(Op op, Outcome outcome, int64_t begin_ns, std::string_view why = {}) {
  Record record{.op = op, .outcome = outcome, .begin_ns = begin_ns, .end_ns = NowNs()};
  std::memcpy(record.why.data(), why.data(), std::min(why.size(), record.why.size() - 1));
  // A test that has gone reads nothing any more; its children end with it.
  if (write(STDOUT_FILENO, &record, sizeof record) != sizeof record) _exit(0);
}

}  // namespace larder::e2e
