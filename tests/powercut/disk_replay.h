// What a disk may hold when the power is lost after any prefix of a DiskLog.
//
//   DiskReplay replay(directory);      // as it was when the recording began: all of it is durable
//   replay.Apply(entry);               // the next entry of the log, repeatedly
//   replay.WriteTo(elsewhere, random); // one of the directories that may be found now
//
// This holds whatever is drawn: a write, or a change of size, is present if a sync of its file
// began after it had returned, and has itself returned; a name is present, or gone, if its
// directory was synced in this way.  Everything else may be in any state:
//   bytes    all, none, the first few writes with the last one torn, or each one on its own:
//            present, missing, or torn.  Torn means any of its sectors (512 or 4,096 bytes); but a
//            file grows only over bytes that are present, as in file systems that keep order
//   names    all, none, the first few of all directories together (one journal) or of each
//            directory
// The sync of a file does not make its name durable: POSIX does not promise it, though some file
// systems do.
//
// Ownership: copies what it keeps; entries must outlive it, because the bytes of a write stay in
// the log.
// Thread-safety: none.
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
  // REQUIRES: no process writes to the directory meanwhile.
  explicit DiskReplay(const std::string& directory);

  void Apply(const DiskLog::Entry& entry);

  enum class Loss : uint8_t { kNothing, kDrawn };
  // Creates `directory`, which must not exist.
  void WriteTo(const std::string& directory, std::mt19937_64& random, Loss loss) const;

  // Returns how many writes and names may be lost now.
  [[nodiscard]] size_t unsynced() const;

 private:
  static constexpr size_t kPage = 4096;
  using Page = std::array<std::byte, kPage>;
  using Names = std::map<std::string, uint64_t, std::less<>>;
  struct Node {
    bool folder = false;
    uint64_t size = 0;
    std::map<uint64_t, std::unique_ptr<Page>> pages;  // missing pages are zeros
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
