// Memory that a GPU has, and what moves bytes to it, from it and inside it.
//
// host_device is the reference and the one to read first: the same in memory of the process.
// tests/contract/device_contract.h holds every device to this text.
//
// Addresses are numbers of one space, as CUDA's unified addressing has it: of device memory, and of
// memory of the process.  Nothing here touches bytes but what a queue was given.
//
// Synchronizes, in the comment of a call: it may wait for work of the device, of any queue; no such
// call belongs into an engine's loop.  All others only write down what is to be done.
// Ownership: whoever got a unique_ptr.  A Device outlives all that was made of it.
// Thread-safety: Device, PinnedMemory and DeviceEvent from any thread; a DeviceQueue from one at a
// time.
// Errors: Unavailable: no device, or this one cannot do that, in a sentence for the operator.
// ResourceExhausted: its memory is full.  InvalidArgument: says what.  Internal: the driver failed;
// after that a queue answers the same until it is dropped, and its bytes are not to be trusted.
// Fork: all of it belongs to the process that opened the device.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/paged_layout.h"
#include "storage/types.h"

namespace larder {

enum class DeviceKind : uint8_t { kHost = 1, kCuda = 2 };
[[nodiscard]] const char* ToString(DeviceKind kind);

// How another process may be given memory of a device.
enum class SharePath : uint8_t {
  kNone = 1,
  kDescriptor = 2,  // a file descriptor; works across PID namespaces
  kHandle = 3,      // 64 bytes, CUDA's legacy handle; within one PID namespace
};
[[nodiscard]] const char* ToString(SharePath path);

// Memory of the device.  Freed when dropped (synchronizes): drop it after the last copy's event.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  [[nodiscard]] virtual uint64_t address() const = 0;
  // What was asked for; the device may have rounded it up.
  [[nodiscard]] virtual ByteCount bytes() const = 0;
  [[nodiscard]] virtual SharePath share() const = 0;
};

// What Import needs, in a form that travels.  Closes its descriptor when dropped.
class DeviceExport {
 public:
  static constexpr size_t kHandleBytes = 64;

  DeviceExport() = default;
  DeviceExport(SharePath by, ByteCount size) : path(by), bytes(size) {}
  DeviceExport(DeviceExport&& other) noexcept { *this = std::move(other); }
  DeviceExport& operator=(DeviceExport&& other) noexcept;
  ~DeviceExport();

  SharePath path = SharePath::kNone;
  ByteCount bytes;                               // of the memory, before rounding
  int descriptor = -1;                           // kDescriptor; owned
  std::array<std::byte, kHandleBytes> handle{};  // kHandle
};

enum class PinAccess : uint8_t { kRead = 1, kReadWrite = 2 };

// How copies reach memory of the process.
enum class PinPath : uint8_t {
  kPending = 1,     // being registered; copies are staged meanwhile
  kRegistered = 2,  // the device reads and writes it itself
  kReadOnly = 3,    // registered as memory that the device may only read
  kStaged = 4,      // registration was refused: through a pinned buffer of the queue
};
[[nodiscard]] const char* ToString(PinPath path);

struct PinOptions {
  PinAccess access = PinAccess::kReadWrite;
  ByteCount piece_bytes = MiB(512);  // registered at once
  int threads = 2;                   // that register pieces; > 0
};

// Memory of the process that copies may name.  Dropping it unregisters (synchronizes).  The bytes
// stay the caller's, must be mapped as long as this lives, and may be copied from the start: pieces
// that are not registered yet are staged.
class PinnedMemory {
 public:
  virtual ~PinnedMemory() = default;
  [[nodiscard]] virtual std::span<const std::byte> bytes() const = 0;
  // Of the whole; kPending until the last piece was decided, kStaged when one was refused.
  [[nodiscard]] virtual PinPath path() const = 0;
  [[nodiscard]] virtual ByteCount registered() const = 0;
  // Why pieces were refused; empty: none was.
  [[nodiscard]] virtual std::string refusal() const = 0;
  // Until no piece is pending.
  virtual void WaitDecided() = 0;
};

// A place in a queue's order.  Cheap, and outlives its queue.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Everything before it in its queue was done.  An error: some of it failed.
  [[nodiscard]] virtual absl::StatusOr<bool> Done() const = 0;
  // Synchronizes, with that event.  DeadlineExceeded.
  [[nodiscard]] virtual absl::Status Wait(std::chrono::steady_clock::time_point deadline) const = 0;
};

enum class CopyDirection : uint8_t { kToDevice = 1, kFromDevice = 2, kWithin = 3 };

struct DeviceCopy {
  uint64_t to = 0;
  uint64_t from = 0;
  uint64_t bytes = 0;  // 0: nothing
};

// Which layers of which blocks one Gather or Scatter moves.
struct PagedMove {
  LayerRange layers;
  std::span<const PagedBlock> blocks;
  // Multiprocessors that may be busy with it at a time; 0: all of them.
  uint32_t multiprocessors = 0;
};

// What is to be done, in order.  Dropping it waits for that (synchronizes).
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;

  // By the device's copy engines; copies of one batch in any order.  The side that is not the
  // device is memory that was pinned, or AllocatePinned gave; else InvalidArgument, and nothing is
  // copied.  REQUIRES: copies do not overlap; the device's side is its memory.
  [[nodiscard]] virtual absl::Status CopyBatch(CopyDirection direction,
                                               std::span<const DeviceCopy> copies) = 0;
  // From the engine's pages into payloads of records, and back, by its multiprocessors.  Payloads
  // are memory of the device.  One call, whatever the number of blocks.
  // InvalidArgument: PagedPlan::Check says no.  Neither plan nor move is needed after the call.
  [[nodiscard]] virtual absl::Status Gather(const PagedPlan& plan, const PagedMove& move) = 0;
  [[nodiscard]] virtual absl::Status Scatter(const PagedPlan& plan, const PagedMove& move) = 0;

  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<DeviceEvent>> Record() = 0;
  // What is queued from here on waits for the event, of any queue of this device; the caller does
  // not.
  [[nodiscard]] virtual absl::Status WaitFor(const DeviceEvent& event) = 0;
  // Synchronizes, with this queue.
  [[nodiscard]] virtual absl::Status Wait() = 0;
};

enum class DeviceWish : uint8_t { kHost = 1, kCuda = 2, kAuto = 3 };
[[nodiscard]] const char* ToString(DeviceWish wish);

struct DeviceInfo {
  DeviceKind kind = DeviceKind::kHost;
  DeviceWish wish = DeviceWish::kHost;  // what was asked for
  std::string reason;                   // with kAuto, why it is not CUDA's, for the operator
  std::string name;
  ByteCount memory;              // in all; 0: unknown
  uint32_t multiprocessors = 0;  // 0: it has none
  std::string driver;            // "13.0", or empty
  // What this device does not do, each with why and what to do about it.
  std::vector<std::string> limits;
};

// What a device did since it was opened.
struct DeviceStats {
  uint64_t copies = 0;       // of CopyBatch
  uint64_t copy_calls = 0;   // that it took of the driver
  ByteCount bytes_direct;    // between registered memory and the device
  ByteCount bytes_staged;    // through a pinned buffer of a queue
  ByteCount bytes_within;    // inside the device, by copy engines
  ByteCount bytes_moved;     // by Gather and Scatter
  uint64_t launches = 0;     // of kernels, or of what stands for them
  uint64_t imports[2] = {};  // by descriptor, by handle
  // Memory that Pin and AllocatePinned were given and that still is, by the path that copies take
  // (PinPath): not yet decided, registered, registered to be read, refused.
  ByteCount pinned_pending;
  ByteCount pinned_registered;
  ByteCount pinned_read_only;
  ByteCount pinned_staged;
};

class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual const DeviceInfo& info() const = 0;
  [[nodiscard]] virtual DeviceStats stats() const = 0;

  // Synchronizes.  What the memory holds is anything.  Unavailable: it cannot be shared that way.
  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(
      ByteCount bytes, SharePath share = SharePath::kNone) = 0;
  // The process's memory that the device reads and writes itself, of its own.  Synchronizes.
  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<PinnedMemory>> AllocatePinned(
      ByteCount bytes) = 0;
  // Returns at once.  With kRead it may be mapped read-only, and copies into it are refused.
  // InvalidArgument: it does not begin at a page.  AlreadyExists: some of it is pinned.
  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<PinnedMemory>> Pin(
      std::span<const std::byte> memory, const PinOptions& options) = 0;

  // Synchronizes.  FailedPrecondition: the memory was not allocated to be shared.
  [[nodiscard]] virtual absl::StatusOr<DeviceExport> Export(const DeviceMemory& memory) = 0;
  // Synchronizes.  Memory of another process, or of this one; it stays alive as long as somebody
  // has it imported by descriptor.  By handle the owner must outlive it.
  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> Import(
      const DeviceExport& exported) = 0;

  // Work of low priority yields to the engine's where both wait for the device.
  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<DeviceQueue>> MakeQueue(
      bool low_priority = true) = 0;
  // Stands for a queue of the engine (a CUstream), to be ordered against.  It stays the engine's.
  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<DeviceQueue>> AdoptQueue(
      uint64_t native_handle) = 0;
};

// ---- which device

struct OpenedDevice {
  std::unique_ptr<Device> device;
  std::string reason;  // its DeviceInfo's
};

// kCuda: Unavailable with a sentence for the operator where there is none.  kAuto: then the host
// device, and `reason` is that sentence.  Synchronizes.
[[nodiscard]] absl::StatusOr<OpenedDevice> OpenDevice(DeviceWish wish, uint32_t ordinal = 0);

}  // namespace larder
