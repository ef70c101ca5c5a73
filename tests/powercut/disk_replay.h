// What a disk may hold when the power goes after any prefix of a DiskLog.
//
//   DiskReplay replay(directory);      // as it was when the recording began: all of it is durable
//   replay.Apply(entry);               // the next of the log, as often as wanted
//   replay.WriteTo(elsewhere, random); // one of the directories that may be found now
//
// What holds whatever is drawn: a write, or a change of size, is there when a sync of its file
// began after it had returned, and has returned itself; the name of a file is there, or gone, when
// its directory was synced so.  Of the rest anything may be there:
//   bytes    all, none, the first so many writes with the last one torn, or each one on its own:
//            there, not there, or torn.  Torn: any of its sectors (512 or 4,096 bytes); but a file
//            grows over bytes that are there, as file systems that keep order have it
//   names    all, none, the first so many of all directories together (one journal) or of each
// The sync of a file keeps no name of it: POSIX promises none, though some file systems do.
//
// Ownership: copies what it keeps; entries must live while it does (a write's bytes stay in the
// log). Thread-safety: none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/powercut/disk_log.h"

namespace larder::powercut {

class DiskReplay {
 public:
  // Of a directory in which nothing is written meanwhile.
  explicit DiskReplay(const std::string& directory);

  void Apply(const DiskLog::Entry& entry);

  enum class Loss : uint8_t { kNothing, kDrawn };
  // Makes `directory`, which must not be there.
  void WriteTo(const std::string& directory, std::mt19937_64& random, Loss loss) const;

  // Writes and names that may be lost now.
  [[nodiscard]] size_t unsynced() const;

 private:
  static constexpr size_t kPage = 4096;
  using Page = std::array<std::byte, kPage>;
  using Names = std::map<std::string, uint64_t, std::less<>>;
  struct Node {
    bool folder = false;
    uint64_t size = 0;
    std::map<uint64_t, std::unique_ptr<Page>> pages;  // those that are not there are zeros
    Names names;                                      // of a folder
    std::vector<DiskLog::Entry> unsynced;             // changes of bytes, in order
  };
  // What is drawn for one WriteTo.
  struct Drawing;

  void Load(const std::string& path, uint64_t file);
  static void Change(Node* node, const DiskLog::Entry& entry);
  static void Copy(Node* node, uint64_t offset, const std::byte* from, uint64_t length);
  static void Rename(std::map<uint64_t, Names*>& folders, const DiskLog::Entry& entry);
  void Sync(uint64_t file, uint64_t began);
  void SyncNames(uint64_t folder, uint64_t began);
  void WriteFolder(const std::string& path, uint64_t folder, Drawing* drawing) const;
  static void WriteFile(const std::string& path, const Node& node, Drawing* drawing);

  uint64_t root_ = 0;
  std::map<uint64_t, Node> nodes_;
  std::vector<DiskLog::Entry> names_;  // changes of names that are not synced, in order
};

}  // namespace larder::powercut
