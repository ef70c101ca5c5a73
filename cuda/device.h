// The memory of a GPU, and the queues that move bytes to it, from it and inside it.
//
// host_device is the reference implementation and the one to read first.
// tests/contract/device_contract.h checks devices against this text.
//
// Addresses of device memory and of memory of the process are numbers of one address space, as with
// CUDA's unified addressing.
//
// "Synchronizes" in the comment of a call means that the call may wait for work of the device, in
// any queue; an engine must not make such a call in its loop.  Other calls do not normally wait for
// the device; see also cuda_queue.h under "Limits".
// Ownership: the caller owns each unique_ptr that it gets.  A Device must outlive everything that
// was made from it.  Destroying a Device synchronizes.
// Thread-safety: any thread may use Device, DeviceMemory, PinnedMemory and DeviceEvent; only one
// thread at a time may use a DeviceQueue.
// Errors that several calls return: Unavailable: there is no device, or the device cannot do what
// the call asks for; the text says why.  ResourceExhausted: there is no memory.  InvalidArgument:
// an argument is wrong.  Internal: the driver or the operating system failed; the bytes that the
// queue moved must then not be trusted.
// Fork: a device and everything made from it can be used only by the process that opened the
// device.
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

class PagedPlan;  // cuda/paged_plan.h

enum class DeviceKind : uint8_t { kHost = 1, kCuda = 2 };
[[nodiscard]] const char* ToString(DeviceKind kind);

// How a process shares memory of a device with another process.
enum class SharePath : uint8_t {
  kNone = 1,
  kDescriptor = 2,  // a file descriptor; works across PID namespaces
  kHandle = 3,      // 64 bytes, CUDA's legacy handle; within one PID namespace
};
[[nodiscard]] const char* ToString(SharePath path);

// Memory of the device.  Destroying the object gives up the memory, or ends its import
// (synchronizes).  REQUIRES: by then all work of queues that uses the memory is done.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  [[nodiscard]] virtual uint64_t address() const = 0;
  // Returns the size that was asked for; the device may have allocated more.
  [[nodiscard]] virtual ByteCount bytes() const = 0;
  [[nodiscard]] virtual SharePath share() const = 0;
};

// What Device::Import needs, in a form that can be sent to another process.  The destructor closes
// the descriptor.
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
  kPending = 1,     // not decided yet; pieces that are not registered are staged
  kRegistered = 2,  // the device reads and writes it directly
  kReadOnly = 3,    // registered, some of it as memory that the device may only read
  kStaged = 4,      // some pieces were refused: a pinned buffer of the queue stages them
};
[[nodiscard]] const char* ToString(PinPath path);

struct PinOptions {
  PinAccess access = PinAccess::kReadWrite;
  ByteCount piece_bytes = MiB(512);  // about how much one call registers; > 0
  int threads = 2;                   // threads that register pieces; > 0
};

// Memory of the process that copies may use.  Destroying the object unregisters the memory
// (synchronizes), and frees it if it came from AllocatePinned.  Memory that was given to Pin stays
// the caller's, and must be mapped as long as the object lives.  Copies may use the memory as soon
// as the object exists: what the device cannot access directly is staged, that is, copied through a
// pinned buffer of the queue.
class PinnedMemory {
 public:
  virtual ~PinnedMemory() = default;
  [[nodiscard]] virtual std::span<const std::byte> bytes() const = 0;
  // Returns the path of the whole memory: kPending until every piece is registered or refused; then
  // kStaged if a piece was refused, otherwise kReadOnly if a piece was registered read-only,
  // otherwise kRegistered.
  [[nodiscard]] virtual PinPath path() const = 0;
  [[nodiscard]] virtual ByteCount registered() const = 0;
  // Returns the driver's reason for refusing a piece; empty if no piece was refused.
  [[nodiscard]] virtual std::string refusal() const = 0;
  // Waits until every piece is registered or refused.
  virtual void WaitDecided() = 0;
};

// A point in the order of a queue.  Cheap; may outlive its queue.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Returns true if all work before the event in its queue is done, false if it is not done yet.
  // Returns an error if the device failed.
  [[nodiscard]] virtual absl::StatusOr<bool> Done() const = 0;
  // Waits until all work before the event in its queue is done (synchronizes).  Returns
  // DeadlineExceeded if it is not done by the deadline, another error if the device failed.
  [[nodiscard]] virtual absl::Status Wait(std::chrono::steady_clock::time_point deadline) const = 0;
};

enum class CopyDirection : uint8_t { kToDevice = 1, kFromDevice = 2, kWithin = 3 };

struct DeviceCopy {
  uint64_t to = 0;
  uint64_t from = 0;
  uint64_t bytes = 0;  // 0 copies nothing
};

// Which layers of which blocks one Gather or Scatter moves.
struct PagedMove {
  LayerRange layers;
  std::span<const PagedBlock> blocks;
  // The most multiprocessors that work on the move at a time; 0 sets no limit.  The host device
  // ignores it.
  uint32_t multiprocessors = 0;
};

// Work for the device, done in order.  Destroying the queue waits for its work (synchronizes).
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;

  // Enqueues copies, which are made in any order within the batch.  Returns InvalidArgument and
  // copies nothing if memory of the process that a copy uses does not lie in one PinnedMemory, or
  // is written and was pinned with PinAccess::kRead.  REQUIRES: copies do not overlap; all other
  // addresses are memory of the device.
  [[nodiscard]] virtual absl::Status CopyBatch(CopyDirection direction,
                                               std::span<const DeviceCopy> copies) = 0;
  // Gather copies KV from the engine's pages into payloads of records, Scatter copies it back.
  // Payloads lie in memory of the device; that of the host device is all memory of the process.
  // Both return InvalidArgument if PagedPlan::Check fails,
  // or if the move is too large for the device (cuda_device.h, host_device.h); Unavailable if the
  // device has no kernels.  The caller may destroy plan, move and blocks after the call.
  [[nodiscard]] virtual absl::Status Gather(const PagedPlan& plan, const PagedMove& move) = 0;
  [[nodiscard]] virtual absl::Status Scatter(const PagedPlan& plan, const PagedMove& move) = 0;

  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<DeviceEvent>> Record() = 0;
  // Work that is enqueued after this call waits for the event, which may be of any queue of this
  // device.  The call itself does not wait.
  [[nodiscard]] virtual absl::Status WaitFor(const DeviceEvent& event) = 0;
  // Waits until all work of this queue is done (synchronizes).  Returns an error if the device
  // failed.
  [[nodiscard]] virtual absl::Status Wait() = 0;
};

enum class DeviceWish : uint8_t { kHost = 1, kCuda = 2, kAuto = 3 };
[[nodiscard]] const char* ToString(DeviceWish wish);

struct DeviceInfo {
  DeviceKind kind = DeviceKind::kHost;
  DeviceWish wish = DeviceWish::kHost;  // what OpenDevice was asked for
  std::string reason;  // why kAuto opened no CUDA device, for the operator; may be empty
  std::string name;
  ByteCount memory;              // all of the device's memory; 0 if unknown
  uint32_t multiprocessors = 0;  // 0 if the device has none
  std::string driver;            // version, such as "13.0"; empty if there is no driver
  // Limits of this device, for the operator, one sentence each.
  std::vector<std::string> limits;
};

// What a device has done since it was opened.  After errors the numbers are approximate.
struct DeviceStats {
  uint64_t copies = 0;       // copies that CopyBatch enqueued
  uint64_t copy_calls = 0;   // driver calls of CopyBatch that copy (host: calls of CopyBatch)
  ByteCount bytes_direct;    // copied between registered memory and the device
  ByteCount bytes_staged;    // copied through a pinned buffer of a queue
  ByteCount bytes_within;    // copied inside the device by CopyBatch
  ByteCount bytes_moved;     // moved by Gather and Scatter
  uint64_t launches = 0;     // launches of kernels, or of their host twins
  uint64_t imports[2] = {};  // [0]: by descriptor; [1]: by handle
  // Memory that is pinned now, by the state of its pieces (PinPath).
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

  // Allocates memory of the device, with undefined content.  Synchronizes.  Returns InvalidArgument
  // if `bytes` is 0, Unavailable if memory of this device cannot be shared by `share`.
  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(
      ByteCount bytes, SharePath share = SharePath::kNone) = 0;
  // Allocates memory of the process that the device reads and writes directly.  Synchronizes.
  // Returns InvalidArgument if `bytes` is 0.
  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<PinnedMemory>> AllocatePinned(
      ByteCount bytes) = 0;
  // Makes memory of the caller usable by copies.  Does not wait for the memory to be registered,
  // which may happen in the background.  With PinAccess::kRead the memory may be mapped read-only,
  // and copies into it are refused.
  // Returns InvalidArgument if the memory is empty or does not begin at a multiple of 4,096 bytes;
  // AlreadyExists if some of the memory is pinned by this device.  The host device ignores
  // `threads` and `piece_bytes`.
  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<PinnedMemory>> Pin(
      std::span<const std::byte> memory, const PinOptions& options) = 0;

  // Synchronizes.  Returns FailedPrecondition if memory.share() is kNone.
  [[nodiscard]] virtual absl::StatusOr<DeviceExport> Export(const DeviceMemory& memory) = 0;
  // Synchronizes.  Imports memory of another process, or, by descriptor, of this one.  Imported by
  // descriptor, the memory stays alive as long as any process has it imported; imported by handle,
  // the exporting process must keep it alive.  Returns an error if this device does not import by
  // `exported.path`, or if the export does not fit the memory.
  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> Import(
      const DeviceExport& exported) = 0;

  // Makes a queue.  On a GPU it has the driver's lowest priority if `low_priority` is true,
  // otherwise the highest.  The host device ignores the priority.
  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<DeviceQueue>> MakeQueue(
      bool low_priority = true) = 0;
  // Makes a queue from a stream of the engine (a CUstream), so that other queues can wait for the
  // stream's work and the stream for theirs.  The engine keeps ownership of the stream.  The host
  // device returns Unavailable.
  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<DeviceQueue>> AdoptQueue(
      uint64_t native_handle) = 0;
};

// ---- opening a device

struct OpenedDevice {
  std::unique_ptr<Device> device;
  std::string reason;  // DeviceInfo::reason
};

// Opens a device; `ordinal` is the number of the GPU.  If the GPU cannot be opened, kCuda returns
// the error, and kAuto returns the host device with the error's text as `reason`.  Synchronizes.
[[nodiscard]] absl::StatusOr<OpenedDevice> OpenDevice(DeviceWish wish, uint32_t ordinal = 0);

}  // namespace larder
