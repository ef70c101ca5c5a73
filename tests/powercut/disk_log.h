// The log of what processes do to a directory, and of what was promised meanwhile, in the order in
// which it happened.  It is one shared file, which outlives the processes that append to it.
//
// disk_recorder.cc appends the calls that change the disk; a test appends marks (promises.h).  The
// record of a write is placed where the call began, and says where the log ended when the call had
// returned; the record of a sync is placed where the call returned, and says where it began.  So a
// prefix of the log has every write that a disk may have received by then, and says which of them
// the disk must have kept.
//
// Limits: kBytesMax of records; a process that reaches the end of the log aborts.
// Thread-safety: Append and Done from any thread of any process.  Read only after the writers have
// ended.  The log ends at the first record that a killed process left unfinished.
// or a process that is dead would leave a gap: the log ends there.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace larder::powercut {

enum class DiskOp : uint8_t {
  kWrite,       // bytes of `file`, starting at `offset`
  kTruncate,    // `file` has `offset` bytes
  kAllocate,    // `file` has at least `offset` bytes
  kZero,        // `length` bytes of `file`, starting at `offset`
  kSync,        // a file or a directory; began where the log ended at `offset`
  kCreate,      // `file` in `directory` under `name`
  kMakeFolder,  // likewise
  kRename,      // `file`: from `directory`, `name` to `to_directory`, `to_name`
  kRemove,      // `name` in `directory`
  kMark,        // `name` is the mark
};

class DiskLog {
 public:
  static constexpr uint64_t kBytesMax = uint64_t{4} << 30;
  static constexpr uint64_t kNotDone = ~uint64_t{0};
  static constexpr uint64_t kFailed = kNotDone - 1;

  // A record as it lies in the file.
  struct Record {
    std::atomic<uint32_t> bytes;  // its size, a multiple of 8; 0 while it is being written
    DiskOp op;
    uint32_t name_bytes, to_name_bytes;
    std::atomic<uint64_t> done;  // where the log ended when the call returned
    uint64_t file, directory, to_directory, offset, length;
    // followed by name, to_name, and `length` bytes of a kWrite
  };
  // Opens the log of another or an earlier process if there is one.
  explicit DiskLog(const std::string& path) {
    // Not through the C library: the recorder intercepts its calls, and creates its own log at the
    // first one.
    const auto fd = static_cast<int>(
        syscall(SYS_openat, AT_FDCWD, path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (fd < 0 || syscall(SYS_ftruncate, fd, kBytesMax) != 0) Die("cannot make the log");
    void* memory =
        mmap(nullptr, kBytesMax, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (memory == MAP_FAILED) Die("cannot map the log");
    syscall(SYS_close, fd);
    base_ = static_cast<std::byte*>(memory);
    uint64_t empty = 0;
    next().compare_exchange_strong(empty, kFirst);
  }
  ~DiskLog() { munmap(base_, kBytesMax); }
  DiskLog(const DiskLog&) = delete;
  DiskLog& operator=(const DiskLog&) = delete;

  [[nodiscard]] uint64_t end() const { return next().load(); }

  struct Entry {
    DiskOp op = DiskOp::kMark;
    uint64_t file = 0, directory = 0, to_directory = 0, offset = 0, length = 0;
    std::string_view name = {}, to_name = {};
    const std::byte* bytes = nullptr;  // `length` bytes of a kWrite
    uint64_t at = 0, done = 0;         // of an entry that was read
  };
  // Returns the record; its call has not returned yet.
  Record* Append(const Entry& entry) {
    const uint64_t data = entry.op == DiskOp::kWrite ? entry.length : 0;
    const uint64_t bytes =
        (sizeof(Record) + entry.name.size() + entry.to_name.size() + data + 7) / 8 * 8;
    const uint64_t at = next().fetch_add(bytes);
    if (at + bytes > kBytesMax) Die("the log is full");
    auto* record = reinterpret_cast<Record*>(base_ + at);
    record->op = entry.op;
    record->name_bytes = static_cast<uint32_t>(entry.name.size());
    record->to_name_bytes = static_cast<uint32_t>(entry.to_name.size());
    record->done = kNotDone;
    record->file = entry.file;
    record->directory = entry.directory;
    record->to_directory = entry.to_directory;
    record->offset = entry.offset;
    record->length = entry.length;
    std::byte* to = base_ + at + sizeof(Record);
    std::memcpy(to, entry.name.data(), entry.name.size());
    to += entry.name.size();
    std::memcpy(to, entry.to_name.data(), entry.to_name.size());
    to += entry.to_name.size();
    if (data > 0) std::memcpy(to, entry.bytes, data);
    record->bytes.store(static_cast<uint32_t>(bytes), std::memory_order_release);
    return record;
  }
  void Done(Record* record) const { record->done = end(); }
  static void Fail(Record* record) { record->done = kFailed; }
  void AppendDone(const Entry& entry) { Done(Append(entry)); }

  // Returns all calls that did not fail, up to the first unfinished record.  The entries point into
  // the log.
  [[nodiscard]] std::vector<Entry> Read() const {
    std::vector<Entry> entries;
    for (uint64_t at = kFirst; at < end();) {
      const auto* record = reinterpret_cast<const Record*>(base_ + at);
      const uint32_t bytes = record->bytes.load(std::memory_order_acquire);
      if (bytes == 0) break;
      const auto* text = reinterpret_cast<const char*>(base_ + at + sizeof(Record));
      Entry entry{.op = record->op,
                  .file = record->file,
                  .directory = record->directory,
                  .to_directory = record->to_directory,
                  .offset = record->offset,
                  .length = record->length,
                  .name = {text, record->name_bytes},
                  .to_name = {text + record->name_bytes, record->to_name_bytes},
                  .at = at,
                  .done = record->done};
      entry.bytes =
          reinterpret_cast<const std::byte*>(text + record->name_bytes + record->to_name_bytes);
      if (entry.done != kFailed) entries.push_back(entry);
      at += bytes;
    }
    return entries;
  }

 private:
  static constexpr uint64_t kFirst = 64;

  [[nodiscard]] std::atomic<uint64_t>& next() const {
    return *reinterpret_cast<std::atomic<uint64_t>*>(base_);
  }
  [[noreturn]] static void Die(const char* why) {
    std::fprintf(stderr, "disk log: %s\n", why);
    std::abort();
  }

  std::byte* base_ = nullptr;
};

}  // namespace larder::powercut
