// The record that a bystander writes of each call, on a pipe to the test.
//
// Both ends belong to the same build, so the bytes of the struct are sent, and a record is short
// enough that the kernel writes it as a whole.  Times are of CLOCK_MONOTONIC, which all processes
// of a machine share.
// Ownership: values.  Thread-safety: Emit may be called from any thread.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cstdint>
#include <string_view>

namespace larder::e2e {

enum class Op : uint8_t {
  kReady,    // the bystander has stored the blocks that it will read, and begins
  kAttach,   // attaches a new client: sideband, session, one block read
  kPut,      // puts a new block
  kGet,      // gets four blocks that are read often
  kCold,     // gets a block from disk
  kLookup,   // looks up one block, on a lasting connection
  kConnect,  // opens a new connection and looks up one block on it
  kRestore,  // restores a prefix by loading and computing
  kDurable,  // the time from a put until the daemon reports the block as durable
  kPlan,     // acquires 2,048 names in one message, few of which are stored
  kFetch,    // gets one block by a byte stream, as an engine without a sideband does
  kPin,      // pins and unpins
  kWatch,    // the time between two messages of an event stream
  kHealth,   // a health check by the test itself, on a new connection
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
  kComputed,  // a restore that loaded nothing, although the daemon has its blocks
  kMissed,    // a block is missing that is read all the time or was reported as durable
  kFailed,    // an error or a refusal
  kWrong,     // wrong bytes or a false answer
};

struct Record {
  Op op = Op::kReady;
  Outcome outcome = Outcome::kOk;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  std::array<char, 160> why{};  // ends with a NUL; empty if the outcome is kOk
};
static_assert(sizeof(Record) <= PIPE_BUF, "larger records of two threads could mix");

[[nodiscard]] inline int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Writes the record of a call that began at `begin_ns` and has just ended.
inline void Emit(Op op, Outcome outcome, int64_t begin_ns, std::string_view why = {}) {
  Record record{.op = op, .outcome = outcome, .begin_ns = begin_ns, .end_ns = NowNs()};
  std::copy_n(why.begin(), std::min(why.size(), record.why.size() - 1), record.why.begin());
  // If the test has ended, nothing reads the pipe any more, and this process ends too.
  if (write(STDOUT_FILENO, &record, sizeof record) != sizeof record) _exit(0);
}

}  // namespace larder::e2e
