// Device memory in two processes: an owner that is killed at any moment, and an importer that must
// get right bytes or an error, and must survive.
//
// Without a GPU, the host device and the fake driver in LD_LIBRARY_PATH are tested.
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "cuda/cuda_device.h"
#include "cuda/host_device.h"
#include "proto/frames/sideband_packet.h"
#include "tests/support/child_process.h"
#include "tests/support/test_scale.h"

namespace larder {
namespace {

constexpr uint64_t kWords = (4 << 20) / sizeof(uint64_t);

using MakeDevice = absl::StatusOr<std::unique_ptr<Device>> (*)();
absl::StatusOr<std::unique_ptr<Device>> MakeHost() { return MakeHostDevice(); }
absl::StatusOr<std::unique_ptr<Device>> MakeCuda() { return OpenCudaDevice(0); }

struct Case {
  const char* name;
  MakeDevice make;
  SharePath path;
};

// What an importer answers.
enum Answer : uint64_t { kRight = 1, kError = 2, kWrong = 3, kPoisoned = 4 };
// What an importer is asked to do: take the next export, or read again what it has.
enum Order : uint64_t { kImport = 1, kRead = 2 };

struct Packet {
  SharePath path;
  uint64_t bytes, seed;
  std::array<std::byte, DeviceExport::kHandleBytes> handle;
};

uint64_t WordOf(uint64_t seed, uint64_t i) { return (seed + i) * 0x9E3779B97F4A7C15; }

// Allocates and fills memory, exports it, and waits to be killed.
void Own(const Case& c, int socket, uint64_t seed, const Line& line) {
  auto device = c.make();
  CHILD_CHECK(device.ok());
  auto memory = (*device)->Allocate(ByteCount(kWords * 8), c.path);
  CHILD_CHECK(memory.ok());
  auto pinned = (*device)->AllocatePinned(ByteCount(kWords * 8));
  auto queue = (*device)->MakeQueue();
  CHILD_CHECK(pinned.ok() && queue.ok());
  auto* words = reinterpret_cast<uint64_t*>(const_cast<std::byte*>((*pinned)->bytes().data()));
  for (uint64_t i = 0; i < kWords; ++i) words[i] = WordOf(seed, i);
  const DeviceCopy copy{(*memory)->address(), reinterpret_cast<uint64_t>(words), kWords * 8};
  CHILD_CHECK((*queue)->CopyBatch(CopyDirection::kToDevice, std::span(&copy, 1)).ok());
  CHILD_CHECK((*queue)->Wait().ok());
  const auto exported = (*device)->Export(**memory);
  CHILD_CHECK(exported.ok());
  const Packet packet{exported->path, kWords * 8, seed, exported->handle};
  CHILD_CHECK(SendPacket(socket, std::as_bytes(std::span(&packet, 1)),
                         {.descriptor = exported->descriptor}) == SendResult::kSent);
  line.Tell(1);
  (void)line.Hear();
}

class Importer {
 public:
  Importer(const Case& c, int socket) : socket_(socket) {
    auto device = c.make();
    CHILD_CHECK(device.ok());
    device_ = *std::move(device);
    auto pinned = device_->AllocatePinned(ByteCount(kWords * 8));
    auto queue = device_->MakeQueue();
    CHILD_CHECK(pinned.ok() && queue.ok());
    pinned_ = *std::move(pinned);
    queue_ = *std::move(queue);
  }
  // Serves until the parent is gone, or the device cannot be used any longer.
  void Serve(const Line& line) {
    for (std::optional<uint64_t> order = line.Hear(); order; order = line.Hear()) {
      const Answer answer = *order == kImport ? Import() : Read();
      line.Tell(answer);
      if (answer == kPoisoned) return;
    }
  }

 private:
  Answer Import() {
    memory_.reset();
    ReceivedPacket received;
    CHILD_CHECK(ReceivePacket(socket_, received) == ReceiveResult::kPacket);
    Packet packet;
    CHILD_CHECK(received.size == sizeof packet);
    std::memcpy(&packet, received.data.data(), sizeof packet);
    DeviceExport exported(packet.path, ByteCount(packet.bytes));
    exported.handle = packet.handle;
    if (!received.descriptors.empty()) exported.descriptor = received.descriptors[0].Release();
    seed_ = packet.seed;
    auto memory = device_->Import(exported);
    if (!memory.ok()) return Explain(memory.status());
    memory_ = *std::move(memory);
    return Read();
  }
  Answer Read() {
    if (memory_ == nullptr) return kError;
    std::memset(const_cast<std::byte*>(pinned_->bytes().data()), 0xEE, kWords * 8);
    const auto* words = reinterpret_cast<const uint64_t*>(pinned_->bytes().data());
    const DeviceCopy copy{reinterpret_cast<uint64_t>(words), memory_->address(), kWords * 8};
    absl::Status status = queue_->CopyBatch(CopyDirection::kFromDevice, std::span(&copy, 1));
    if (status.ok()) status = queue_->Wait();
    if (!status.ok()) return Explain(status);
    for (uint64_t i = 0; i < kWords; ++i)
      if (words[i] != WordOf(seed_, i)) return kWrong;
    return kRight;
  }
  // An error of the driver may concern this memory alone, or the whole context.
  Answer Explain(const absl::Status& status) {
    std::fprintf(stderr, "importer: %s\n", status.ToString().c_str());
    memory_.reset();
    return queue_->Wait().ok() && device_->Allocate(ByteCount(4096)).ok() ? kError : kPoisoned;
  }

  const int socket_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<PinnedMemory> pinned_;
  std::unique_ptr<DeviceQueue> queue_;
  std::unique_ptr<DeviceMemory> memory_;
  uint64_t seed_ = 0;
};

class DeviceIpc : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    // Runs in a child, because CUDA does not survive a fork.
    ChildProcess probe([](const Line& line) {
      auto device = GetParam().make();
      line.Tell(device.ok() && (*device)->Allocate(MiB(2), GetParam().path).ok() ? 1 : 2);
    });
    if (probe.line().Hear() != 1)
      GTEST_SKIP() << GetParam().name
                   << ": no such device here, or it cannot share memory this way";
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    owners_end_ = FileDescriptor(ends[0]);
    importers_end_ = FileDescriptor(ends[1]);
  }
  void StartImporter() {
    importer_ = std::make_unique<ChildProcess>(
        [this](const Line& line) { Importer(GetParam(), importers_end_.get()).Serve(line); });
  }
  // Returns nullopt if the importer died.
  std::optional<uint64_t> Ask(Order order) {
    importer_->line().Tell(order);
    return importer_->line().Hear();
  }

  FileDescriptor owners_end_, importers_end_;
  std::unique_ptr<ChildProcess> importer_;
};

TEST_P(DeviceIpc, TheDeathOfAnOwnerLeavesRightBytesOrAnError) {
  std::mt19937 random(testing::TestSeed());
  const uint64_t rounds = testing::Scaled(200);
  uint64_t right = 0, errors = 0, poisoned = 0;
  StartImporter();
  for (uint64_t round = 0; round < rounds; ++round) {
    auto owner = std::make_unique<ChildProcess>([this, round](const Line& line) {
      Own(GetParam(), owners_end_.get(), round * kWords, line);
    });
    ASSERT_EQ(owner->line().Hear(), 1u) << "the owner must export its memory";
    const auto reads_before = static_cast<uint32_t>(random() % 5);
    for (uint32_t i = 0; i < reads_before + 3; ++i) {
      if (i == reads_before) owner.reset();  // killed by SIGKILL and reaped
      const std::optional<uint64_t> answer = Ask(i == 0 ? kImport : kRead);
      ASSERT_TRUE(answer.has_value()) << "the importer must survive";
      ASSERT_NE(*answer, kWrong) << "round " << round << ", read " << i << " of " << reads_before;
      right += *answer == kRight;
      if (*answer == kRight) continue;
      EXPECT_GE(i, reads_before) << "an error may occur only after the owner has died";
      ++errors;
      if (*answer == kPoisoned) {
        ++poisoned;
        StartImporter();
      }
      break;
    }
  }
  std::printf(
      "%s: %lu owners killed; %lu reads right, %lu ended with an error, %lu of them took the "
      "context along\n",
      GetParam().name, rounds, right, errors, poisoned);
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceIpc,
                         ::testing::Values(Case{"host", MakeHost, SharePath::kDescriptor},
                                           Case{"cuda_descriptor", MakeCuda,
                                                SharePath::kDescriptor},
                                           Case{"cuda_handle", MakeCuda, SharePath::kHandle}),
                         [](const auto& c) { return std::string(c.param.name); });

}  // namespace
}  // namespace larder
