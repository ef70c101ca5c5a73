#include "storage/disk/data_files.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/check.h"
#include "storage/disk/directory.h"
#include "storage/disk/private_files.h"
#include "storage/status_macros.h"
#include "storage/text.h"

namespace larder {
namespace {

constexpr std::string_view kSuffix = ".kv";
constexpr size_t kVectorsMax = 256;  // in one system call

// Returns the number in a name like "00000012.kv"; nullopt for any other name.
std::optional<uint32_t> NumberOf(const std::string& name) {
  constexpr size_t kDigits = 8;
  if (name.size() != kDigits + kSuffix.size() || !name.ends_with(kSuffix)) return std::nullopt;
  uint32_t number = 0;
  for (size_t i = 0; i < kDigits; ++i) {
    if (name[i] < '0' || name[i] > '9') return std::nullopt;
    number = number * 10 + static_cast<uint32_t>(name[i] - '0');
  }
  return number;
}

// Removes `done` bytes from the front of the vectors from *at on, and advances *at past vectors
// that are used up.
void Advance(std::span<iovec> vectors, size_t* at, size_t done) {
  while (done > 0) {
    iovec& first = vectors[*at];
    const size_t here = std::min(done, first.iov_len);
    first.iov_base = static_cast<std::byte*>(first.iov_base) + here;
    first.iov_len -= here;
    done -= here;
    if (first.iov_len == 0) ++*at;
  }
}

// Reads or writes all of `vectors` by `call(vectors, count, offset)`, in as many calls as needed.
template <class Call>
absl::Status All(std::span<iovec> vectors, uint64_t offset, FaultPoint point, FaultPoints& faults,
                 const char* what, const std::string& path, Call call) {
  size_t at = 0;
  while (at < vectors.size()) {
    iovec half{};
    std::span<iovec> now = vectors.subspan(at, std::min(kVectorsMax, vectors.size() - at));
    switch (faults.At(point)) {
      case FaultPoints::Fault::kError:
        return FileError(EIO, what, path);
      case FaultPoints::Fault::kFull:
        return FileError(ENOSPC, what, path);
      case FaultPoints::Fault::kShort:
        half = {now[0].iov_base,
                std::max<size_t>(kPageBytes, now[0].iov_len / 2 / kPageBytes * kPageBytes)};
        now = {&half, 1};
        break;
      case FaultPoints::Fault::kNone:
        break;
    }
    const ssize_t done = call(now.data(), static_cast<int>(now.size()), offset);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return FileError(errno, what, path);
    if (done == 0)
      return absl::UnavailableError(absl::StrCat(what, " ", path, ": unexpected end of file"));
    offset += static_cast<uint64_t>(done);
    Advance(vectors, &at, static_cast<size_t>(done));
  }
  return absl::OkStatus();
}

}  // namespace

DataFiles::DataFiles(const Options& options) : options_(options), fds_(options.files_max, -1) {}

DataFiles::~DataFiles() {
  for (const int fd : fds_) {
    if (fd >= 0) close(fd);
  }
}

std::string DataFiles::PathOf(uint32_t file) const {
  return absl::StrCat(options_.directory, "/", absl::StrFormat("%08d", file), AbslView(kSuffix));
}

absl::StatusOr<std::unique_ptr<DataFiles>> DataFiles::Open(const Options& options) {
  LARDER_CHECK(options.faults != nullptr && options.file_bytes.value() > 0 &&
               options.file_bytes.value() % kPageBytes == 0);
  auto files = absl::WrapUnique(new DataFiles(options));
  uint32_t count = 0;
  std::vector<std::filesystem::path> beyond;
  const auto look = [&](const std::filesystem::directory_entry& entry) {
    const std::optional<uint32_t> number = NumberOf(entry.path().filename().string());
    if (!number) return;
    if (*number < options.files_max) {
      count = std::max(count, *number + 1);
    } else {
      beyond.push_back(entry.path());
    }
  };
  if (const std::error_code error = ForEachIn(options.directory, look); error)
    return FileError(error.value(), "cannot read", options.directory);
  for (const std::filesystem::path& path : beyond) {
    std::error_code error;
    if (!std::filesystem::remove(path, error) && error)
      return FileError(error.value(), "cannot remove", path.string());
  }
  for (uint32_t file = 0; file < count; ++file) {
    LARDER_RETURN_IF_ERROR(files->OpenOne(file));
    files->count_.store(file + 1, std::memory_order_release);
  }
  // The directory is synced because files may have been created or removed above.
  LARDER_RETURN_IF_ERROR(SyncDirectory(options.directory));
  return files;
}

absl::Status DataFiles::OpenOne(uint32_t file) {
  const std::string path = PathOf(file);
  constexpr int kFlags = O_RDWR | O_CREAT;
  int why = 0;
  absl::StatusOr<int> opened = OpenPrivateFile(path, kFlags | O_DIRECT, &why);
  if (!opened.ok() && why == EINVAL) {
    direct_ = false;
    opened = OpenPrivateFile(path, kFlags);
  }
  LARDER_RETURN_IF_ERROR(opened.status());
  const int fd = *opened;
  // Allocates the space of the whole file, so that a full disk makes OpenOne fail and not a later
  // write, as far as the file system keeps that promise.
  const auto bytes = static_cast<off_t>(options_.file_bytes.value());
  int error = ftruncate(fd, bytes) == 0 ? 0 : errno;
  if (error == 0) error = posix_fallocate(fd, 0, bytes);
  if (error == 0 && fsync(fd) != 0) error = errno;
  if (error != 0) {
    close(fd);
    return FileError(error, "cannot allocate", path);
  }
  fds_[file] = fd;
  return absl::OkStatus();
}

absl::Status DataFiles::AddFile() {
  const uint32_t file = count();
  if (file >= options_.files_max)
    return absl::ResourceExhaustedError("the shard already has its maximum number of data files");
  switch (options_.faults->At(FaultPoint::kDataCreate)) {
    case FaultPoints::Fault::kNone:
      break;
    case FaultPoints::Fault::kFull:
      return FileError(ENOSPC, "cannot allocate", PathOf(file));
    default:
      return FileError(EIO, "cannot open", PathOf(file));
  }
  absl::Status status = OpenOne(file);
  if (status.ok()) status = options_.faults->StatusAt(FaultPoint::kDataCreated);
  if (status.ok()) status = SyncDirectory(options_.directory);
  if (status.ok()) {
    count_.store(file + 1, std::memory_order_release);
    return status;
  }
  if (fds_[file] >= 0) close(std::exchange(fds_[file], -1));
  unlink(PathOf(file).c_str());  // a partly allocated file would count against the limit
  return status;
}

absl::Status DataFiles::Write(uint32_t file, uint64_t offset,
                              std::span<const std::span<const std::byte>> from) {
  LARDER_CHECK(file < count());
  std::vector<iovec> vectors;
  vectors.reserve(from.size());
  for (const std::span<const std::byte> bytes : from)
    vectors.push_back({const_cast<std::byte*>(bytes.data()), bytes.size()});
  return All(vectors, offset, FaultPoint::kDataWrite, *options_.faults, "cannot write",
             PathOf(file), [fd = fds_[file]](const iovec* now, int count, uint64_t at) {
               return pwritev(fd, now, count, static_cast<off_t>(at));
             });
}

absl::Status DataFiles::Read(uint32_t file, uint64_t offset,
                             std::span<const std::span<std::byte>> to) {
  LARDER_CHECK(file < count());
  std::vector<iovec> vectors;
  vectors.reserve(to.size());
  for (const std::span<std::byte> bytes : to) vectors.push_back({bytes.data(), bytes.size()});
  return All(vectors, offset, FaultPoint::kDataRead, *options_.faults, "cannot read", PathOf(file),
             [fd = fds_[file]](const iovec* now, int count, uint64_t at) {
               return preadv(fd, now, count, static_cast<off_t>(at));
             });
}

absl::Status DataFiles::Sync(uint32_t file) {
  LARDER_CHECK(file < count());
  if (options_.faults->At(FaultPoint::kDataSync) != FaultPoints::Fault::kNone)
    return FileError(EIO, "cannot sync", PathOf(file));
  return fdatasync(fds_[file]) == 0 ? absl::OkStatus()
                                    : FileError(errno, "cannot sync", PathOf(file));
}

}  // namespace larder
