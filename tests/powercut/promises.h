// What a writer was promised about numbered items (blocks, pins, facts), each of which has one
// version or none, and so what may be found of them after a loss of power.
//
//   storing     requested: the version may be present from now on
//   stored      promised: the version is present, and no other
//   removing    requested: the version may be gone from now on
//   removed     promised: no version is present
//
// Of versions that were removed without that promise any may be found, until a newer one is stored.
//
// Thread-safety: a Ledger from any thread, a Promise from one thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "storage/mutex.h"
#include "tests/powercut/disk_log.h"

namespace larder::powercut {

enum class Said : uint8_t { kStoring, kStored, kRemoving, kRemoved };

enum class Verdict : uint8_t { kRight, kLost, kBack, kWrong };
[[nodiscard]] inline const char* ToString(Verdict verdict) {
  constexpr std::array<const char*, 4> kNames = {"right", "lost", "back", "wrong"};
  return kNames[static_cast<size_t>(verdict)];
}

class Promise {
 public:
  void Hear(Said said, uint32_t version) {
    switch (said) {
      case Said::kStoring:
        may_be_.push_back(version);
        break;
      case Said::kStored:
        may_be_ = {version};
        may_be_missing_ = false;
        break;
      case Said::kRemoving:
        may_be_missing_ = true;
        break;
      case Said::kRemoved:
        may_be_.clear();
        may_be_missing_ = true;
        break;
    }
  }
  // Judges what was found.
  [[nodiscard]] Verdict Judge(std::optional<uint32_t> found) const {
    if (!found) return may_be_missing_ ? Verdict::kRight : Verdict::kLost;
    if (std::ranges::find(may_be_, *found) != may_be_.end()) return Verdict::kRight;
    return may_be_.empty() ? Verdict::kBack : Verdict::kWrong;
  }
  [[nodiscard]] bool may_be_missing() const { return may_be_missing_; }

 private:
  bool may_be_missing_ = true;
  std::vector<uint32_t> may_be_;
};

enum class Book : uint8_t { kBlocks, kFacts };

// A promise in the form of a mark in a DiskLog.
struct Mark {
  Book book = Book::kBlocks;
  Said said = Said::kStoring;
  uint32_t number = 0;
  uint32_t version = 0;
};

struct Promises {
  std::vector<Promise> blocks, facts;
  void Hear(const Mark& mark) {
    std::vector<Promise>& book = mark.book == Book::kBlocks ? blocks : facts;
    if (book.size() <= mark.number) book.resize(mark.number + 1);
    book[mark.number].Hear(mark.said, mark.version);
  }
  void Hear(const DiskLog::Entry& entry) {
    if (entry.op != DiskOp::kMark) return;
    Mark mark;
    std::memcpy(&mark, entry.name.data(), sizeof mark);
    Hear(mark);
  }
};

// The promises that many threads were given.  They are also marked in a log, if there is one.
class Ledger {
 public:
  explicit Ledger(DiskLog* log = nullptr) : log_(log) {}
  void Hear(const Mark& mark) LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    promises_.Hear(mark);
    ++heard_;
    if (log_ != nullptr)
      log_->AppendDone(
          {.op = DiskOp::kMark, .name = {reinterpret_cast<const char*>(&mark), sizeof mark}});
  }
  // Returns the promises as they are after `stop` has stopped the process that gives them.  None is
  // requested or given meanwhile.
  template <class Stop>
  [[nodiscard]] Promises At(Stop stop) LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    stop();
    return promises_;
  }
  // Returns how many requests and promises were recorded.
  [[nodiscard]] uint64_t heard() const LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return heard_;
  }

 private:
  DiskLog* const log_;
  mutable Mutex mu_;
  Promises promises_ LARDER_GUARDED_BY(mu_);
  uint64_t heard_ LARDER_GUARDED_BY(mu_) = 0;
};

}  // namespace larder::powercut
