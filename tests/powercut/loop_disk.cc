#include "tests/powercut/loop_disk.h"

#include <fcntl.h>
#include <linux/loop.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

namespace larder::powercut {
namespace {

constexpr int kCopiesMax = 20;
constexpr int kDevicesMax = 64;  // that other processes may take first

absl::Status Failed(const std::string& what, int error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(error)));
}

std::string DevicePath(int number) { return absl::StrCat("/dev/loop", number); }

// Returns an open descriptor, or -1 if the device cannot be opened.
int OpenDevice(int number) {
  const std::string path = DevicePath(number);
  // A container's /dev may lack the node of a device that the kernel has.
  constexpr unsigned kLoopMajor = 7;
  if (access(path.c_str(), F_OK) != 0)
    (void)mknod(path.c_str(), S_IFBLK | 0600, makedev(kLoopMajor, static_cast<unsigned>(number)));
  return open(path.c_str(), O_RDWR | O_CLOEXEC);
}

// Attaches a loop device to the image.  The kernel detaches it when it is no longer used.
absl::StatusOr<std::pair<int, int>> Attach(const std::string& image) {
  const int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
  if (control < 0) return Failed("cannot open /dev/loop-control", errno);
  const int file = open(image.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) {
    close(control);
    return Failed("cannot open " + image, errno);
  }
  absl::Status status = absl::UnavailableError("no loop device is free");
  std::pair<int, int> attached{-1, -1};
  for (int i = 0; i < kDevicesMax && attached.first < 0; ++i) {
    const int number = ioctl(control, LOOP_CTL_GET_FREE);
    const int device = number < 0 ? -1 : OpenDevice(number);
    if (device < 0) {
      status = Failed("cannot open a loop device", errno);
      break;
    }
    loop_config config{};
    config.fd = static_cast<unsigned>(file);
    config.info.lo_flags = LO_FLAGS_AUTOCLEAR;
    if (ioctl(device, LOOP_CONFIGURE, &config) == 0) {
      attached = {number, device};
      break;
    }
    const int error = errno;
    close(device);
    status = Failed("cannot set up " + DevicePath(number), error);
    if (error != EBUSY) break;  // otherwise another process was faster
  }
  close(file);
  close(control);
  if (attached.first < 0) return status;
  return attached;
}

// Copies the data; the rest of `to` stays a hole.
absl::Status CopySparse(const std::string& from, const std::string& to) {
  const int in = open(from.c_str(), O_RDONLY | O_CLOEXEC);
  const int out = open(to.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  struct stat size {};
  absl::Status status;
  if (in < 0 || out < 0 || fstat(in, &size) != 0 || ftruncate(out, size.st_size) != 0)
    status = Failed("cannot copy " + from, errno);
  std::vector<char> buffer(MiB(1).value());
  for (off_t at = 0; status.ok() && (at = lseek(in, at, SEEK_DATA)) >= 0;) {
    const off_t end = lseek(in, at, SEEK_HOLE);
    while (status.ok() && at < end) {
      const auto count = std::min<size_t>(buffer.size(), static_cast<size_t>(end - at));
      const ssize_t got = pread(in, buffer.data(), count, at);
      if (got <= 0 || pwrite(out, buffer.data(), static_cast<size_t>(got), at) != got)
        status = Failed("cannot copy " + from, errno);
      at += got;
    }
  }
  if (in >= 0) close(in);
  if (out >= 0) close(out);
  return status;
}

}  // namespace

std::string LoopDisk::WhyNot() {
  if (geteuid() != 0) return "it mounts file systems, which needs root";
  if (std::system("command -v mkfs.ext4 >/dev/null") != 0)
    return "there is no mkfs.ext4 (e2fsprogs; deploy/install-deps.sh)";
  const int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
  if (control < 0) return absl::StrCat("there are no loop devices: ", std::strerror(errno));
  close(control);
  if (unshare(CLONE_NEWNS) != 0 || mount("", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return absl::StrCat("it may have no mounts of its own: ", std::strerror(errno));
  return "";
}

absl::StatusOr<std::unique_ptr<LoopDisk>> LoopDisk::Make(const std::string& image, ByteCount bytes,
                                                         const std::string& folder) {
  const int file = open(image.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const bool sized = file >= 0 && ftruncate(file, static_cast<off_t>(bytes.value())) == 0;
  if (!sized) return Failed("cannot make " + image, errno);
  close(file);
  // Everything is written now, so that no background work continues during the test.
  const std::string command = absl::StrCat(
      "mkfs.ext4 -q -F -m 0 -N 2048 -J size=8 -E lazy_itable_init=0,lazy_journal_init=0,nodiscard "
      "'",
      image, "'");
  if (const int code = std::system(command.c_str()); code != 0)
    return absl::UnavailableError(absl::StrCat("mkfs.ext4 ended with ", code));
  return Mount(image, folder);
}

absl::StatusOr<std::unique_ptr<LoopDisk>> LoopDisk::Mount(const std::string& image,
                                                          const std::string& folder) {
  const auto attached = Attach(image);
  if (!attached.ok()) return attached.status();
  const auto [number, device] = *attached;
  const int mounted =
      mount(DevicePath(number).c_str(), folder.c_str(), "ext4", MS_NOATIME, "errors=remount-ro");
  const int error = errno;
  close(device);
  if (mounted != 0) return Failed(absl::StrCat("cannot mount ", image, " at ", folder), error);
  return absl::WrapUnique(new LoopDisk(image, folder, number));
}

LoopDisk::LoopDisk(std::string image, std::string folder, int device)
    : image_(std::move(image)), folder_(std::move(folder)), device_(device) {}

LoopDisk::~LoopDisk() {
  if (umount2(folder_.c_str(), 0) != 0) (void)umount2(folder_.c_str(), MNT_DETACH);
}

std::string LoopDisk::Written() const {
  std::ifstream file(absl::StrCat("/sys/block/loop", device_, "/stat"));
  std::vector<std::string> words;
  for (std::string word; file >> word;) words.push_back(word);
  constexpr size_t kWrites = 4, kSectors = 6, kInFlight = 8;
  return words.size() > kInFlight
             ? absl::StrCat(words[kWrites], " ", words[kSectors], " ", words[kInFlight])
             : "";
}

absl::StatusOr<int> LoopDisk::CopyImage(const std::string& to) const {
  for (int copies = 1; copies <= kCopiesMax; ++copies) {
    const std::string before = Written();
    if (absl::Status status = CopySparse(image_, to); !status.ok()) return status;
    if (before.empty())
      return absl::UnavailableError("the kernel does not count writes to loop devices");
    if (before.ends_with(" 0") && Written() == before) return copies;
  }
  return absl::DeadlineExceededError("the kernel wrote to the loop device during each copy");
}

}  // namespace larder::powercut
