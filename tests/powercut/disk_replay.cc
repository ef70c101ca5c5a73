#include "tests/powercut/disk_replay.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "storage/check.h"

namespace larder::powercut {
namespace {

namespace fs = std::filesystem;
using Entry = DiskLog::Entry;

uint64_t InodeOf(const std::string& path) {
  struct stat found {};
  LARDER_CHECK(lstat(path.c_str(), &found) == 0);
  return found.st_ino;
}

bool IsOf(const Entry& entry, uint64_t folder) {
  return entry.directory == folder || (entry.op == DiskOp::kRename && entry.to_directory == folder);
}

void WriteAt(int fd, const std::byte* from, uint64_t bytes, uint64_t at) {
  LARDER_CHECK(pwrite(fd, from, bytes, static_cast<off_t>(at)) == static_cast<ssize_t>(bytes));
}

// An open file, to which changes are written whole or in part.
class Output {
 public:
  explicit Output(const std::string& path)
      : fd_(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) {
    LARDER_CHECK(fd_ >= 0);
  }
  ~Output() { close(fd_); }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  [[nodiscard]] int fd() const { return fd_; }
  void Resize(uint64_t bytes) {
    LARDER_CHECK(ftruncate(fd_, static_cast<off_t>(bytes)) == 0);
    size_ = bytes;
  }
  void Change(const Entry& entry) {
    switch (entry.op) {
      case DiskOp::kWrite:
        WriteAt(fd_, entry.bytes, entry.length, entry.offset);
        size_ = std::max(size_, entry.offset + entry.length);
        break;
      case DiskOp::kTruncate:
        Resize(entry.offset);
        break;
      case DiskOp::kAllocate:
        if (entry.offset > size_) Resize(entry.offset);
        break;
      case DiskOp::kZero: {
        const uint64_t end = std::min(size_, entry.offset + entry.length);
        if (end <= entry.offset) break;
        const std::vector<std::byte> zeros(end - entry.offset);
        WriteAt(fd_, zeros.data(), zeros.size(), entry.offset);
        break;
      }
      default:
        LARDER_CHECK(false);
    }
  }
  // Writes random sectors of the change; beyond the end of the file, only sectors without a gap.
  void Tear(const Entry& entry, uint64_t sector, std::mt19937_64& random) {
    if (entry.op != DiskOp::kWrite) return;  // a change of size happens or does not
    const uint64_t end = entry.offset + entry.length;
    const uint64_t grown =
        size_ >= end ? end : size_ + random() % (end - size_ + 1) / sector * sector;
    for (uint64_t at = entry.offset; at < end;) {
      const uint64_t to = std::min(end, (at / sector + 1) * sector);
      const bool inside = to <= size_;
      if (inside ? random() % 2 == 0 : to <= grown) {
        WriteAt(fd_, entry.bytes + (at - entry.offset), to - at, at);
        size_ = std::max(size_, to);
      }
      at = to;
    }
  }

 private:
  const int fd_;
  uint64_t size_ = 0;
};

}  // namespace

// ---- The log.

DiskReplay::DiskReplay(const std::string& directory) : root_(InodeOf(directory)) {
  Load(directory, root_);
}

void DiskReplay::Load(const std::string& path, uint64_t file) {
  Node& node = nodes_[file];
  node.folder = fs::is_directory(path);
  if (node.folder) {
    for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
      const uint64_t number = InodeOf(entry.path());
      node.names[entry.path().filename()] = number;
      Load(entry.path(), number);
    }
    return;
  }
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  LARDER_CHECK(fd >= 0);
  node.size = fs::file_size(path);
  for (off_t at = 0; (at = lseek(fd, at, SEEK_DATA)) >= 0;) {
    const auto number = static_cast<uint64_t>(at) / kPage;
    auto page = std::make_unique<Page>();
    page->fill(std::byte{0});
    LARDER_CHECK(pread(fd, page->data(), kPage, static_cast<off_t>(number * kPage)) > 0);
    const bool zeros = std::ranges::all_of(*page, [](std::byte b) { return b == std::byte{0}; });
    if (!zeros) node.pages[number] = std::move(page);
    at = static_cast<off_t>((number + 1) * kPage);
  }
  close(fd);
}

void DiskReplay::Apply(const Entry& entry) {
  switch (entry.op) {
    case DiskOp::kMark:
      return;
    case DiskOp::kSync:
      return Sync(entry.file, entry.offset);
    case DiskOp::kCreate:
    case DiskOp::kMakeFolder:
      nodes_[entry.file].folder = entry.op == DiskOp::kMakeFolder;
      names_.push_back(entry);
      return;
    case DiskOp::kRename:
    case DiskOp::kRemove:
      names_.push_back(entry);
      return;
    default:
      nodes_[entry.file].unsynced.push_back(entry);
  }
}

void DiskReplay::Sync(uint64_t file, uint64_t began) {
  Node& node = nodes_[file];
  if (node.folder) return SyncNames(file, began);
  std::erase_if(node.unsynced, [&](const Entry& entry) {
    if (entry.done > began) return false;
    Change(&node, entry);
    return true;
  });
}

void DiskReplay::SyncNames(uint64_t folder, uint64_t began) {
  std::map<uint64_t, Names*> folders;
  for (auto& [number, node] : nodes_) folders[number] = &node.names;
  std::erase_if(names_, [&](const Entry& entry) {
    if (entry.done > began || !IsOf(entry, folder)) return false;
    Rename(folders, entry);
    return true;
  });
}

void DiskReplay::Rename(std::map<uint64_t, Names*>& folders, const Entry& entry) {
  Names& names = *folders[entry.directory];
  const std::string name(entry.name);
  switch (entry.op) {
    case DiskOp::kCreate:
    case DiskOp::kMakeFolder:
      names[name] = entry.file;
      break;
    case DiskOp::kRename:
      names.erase(name);
      (*folders[entry.to_directory])[std::string(entry.to_name)] = entry.file;
      break;
    default:
      names.erase(name);
  }
}

void DiskReplay::Copy(Node* node, uint64_t offset, const std::byte* from, uint64_t length) {
  for (uint64_t done = 0; done < length;) {
    std::unique_ptr<Page>& page = node->pages[(offset + done) / kPage];
    if (!page) {
      page = std::make_unique<Page>();
      page->fill(std::byte{0});
    }
    const uint64_t at = (offset + done) % kPage;
    const uint64_t bytes = std::min(kPage - at, length - done);
    if (from != nullptr) {
      std::memcpy(page->data() + at, from + done, bytes);
    } else {
      std::memset(page->data() + at, 0, bytes);
    }
    done += bytes;
  }
}

void DiskReplay::Change(Node* node, const Entry& entry) {
  switch (entry.op) {
    case DiskOp::kWrite:
      Copy(node, entry.offset, entry.bytes, entry.length);
      node->size = std::max(node->size, entry.offset + entry.length);
      break;
    case DiskOp::kTruncate:
      if (entry.offset < node->size) {
        const uint64_t end = (entry.offset + kPage - 1) / kPage * kPage;
        Copy(node, entry.offset, nullptr, end - entry.offset);
        node->pages.erase(node->pages.lower_bound(end / kPage), node->pages.end());
      }
      node->size = entry.offset;
      break;
    case DiskOp::kAllocate:
      node->size = std::max(node->size, entry.offset);
      break;
    case DiskOp::kZero:
      if (entry.offset < node->size)
        Copy(node, entry.offset, nullptr, std::min(entry.length, node->size - entry.offset));
      break;
    default:
      LARDER_CHECK(false);
  }
}

size_t DiskReplay::unsynced() const {
  size_t count = names_.size();
  for (const auto& [number, node] : nodes_) count += node.unsynced.size();
  return count;
}

// ---- One of the possible disks.

struct DiskReplay::Drawing {
  std::mt19937_64& random;
  const Loss loss;
  const uint64_t sector;
  std::map<uint64_t, Names> folders;  // as they are found

  [[nodiscard]] uint64_t Below(uint64_t bound) { return random() % bound; }
};

void DiskReplay::WriteTo(const std::string& directory, std::mt19937_64& random, Loss loss) const {
  Drawing drawing{
      .random = random, .loss = loss, .sector = random() % 2 == 0 ? 512u : 4096u, .folders = {}};
  std::map<uint64_t, Names*> folders;
  for (const auto& [number, node] : nodes_) {
    if (node.folder) folders[number] = &(drawing.folders[number] = node.names);
  }
  enum Kind : uint8_t { kAll, kNone, kOneJournal, kEach, kKinds };
  const auto kind = loss == Loss::kNothing ? kAll : static_cast<Kind>(drawing.Below(kKinds));
  const uint64_t first = drawing.Below(names_.size() + 1);
  std::map<uint64_t, bool> over;  // by directory: the rest is lost
  for (size_t i = 0; i < names_.size(); ++i) {
    if (kind == kNone || (kind == kOneJournal && i >= first)) break;
    // A rename between two directories is one change: it is lost if it is lost in either directory.
    bool& here = over[names_[i].directory];
    bool& there = names_[i].op == DiskOp::kRename ? over[names_[i].to_directory] : here;
    here = there = here || there || (kind == kEach && drawing.Below(4) == 0);
    if (!here) Rename(folders, names_[i]);
  }
  WriteFolder(directory, root_, &drawing);
}

void DiskReplay::WriteFolder(const std::string& path, uint64_t folder, Drawing* drawing) const {
  LARDER_CHECK(mkdir(path.c_str(), 0700) == 0);
  for (const auto& [name, file] : drawing->folders[folder]) {
    const std::string below = path + "/" + name;
    const Node& node = nodes_.at(file);
    node.folder ? WriteFolder(below, file, drawing) : WriteFile(below, node, drawing);
  }
}

void DiskReplay::WriteFile(const std::string& path, const Node& node, Drawing* drawing) {
  Output out(path);
  out.Resize(node.size);
  for (const auto& [number, page] : node.pages) {
    if (number * kPage >= node.size) break;
    WriteAt(out.fd(), page->data(), std::min(kPage, node.size - number * kPage), number * kPage);
  }
  enum Kind : uint8_t { kAll, kNone, kFirst, kAny, kKinds };
  const auto kind =
      drawing->loss == Loss::kNothing ? kAll : static_cast<Kind>(drawing->Below(kKinds));
  if (kind == kNone || node.unsynced.empty()) return;
  const uint64_t first = drawing->Below(node.unsynced.size() + 1);
  for (size_t i = 0; i < node.unsynced.size(); ++i) {
    if (kind == kFirst && i > first) break;
    const uint64_t fate = kind == kAll || (kind == kFirst && i < first) ? 0
                          : kind == kFirst                              ? 1
                                                                        : drawing->Below(3);
    if (fate == 0) out.Change(node.unsynced[i]);
    if (fate == 1) out.Tear(node.unsynced[i], drawing->sector, drawing->random);
  }
}

}  // namespace larder::powercut
