// The memory of a gRPC connection is kept for a while after gRPC has freed it.  gRPC's connection
// object must have the size that we assume.
#include "server/grpc/freed_endpoints.h"

#include <grpcpp/create_channel_posix.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <new>
#include <set>
#include <thread>

#include "storage/clock.h"

namespace larder {
namespace {

class FreedEndpointsTest : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer replaces the heap";
#endif
  }
};

// Allocates and frees `bytes`.  Returns the address of that memory.
uintptr_t Free(size_t bytes) {
  void* const memory = operator new(bytes);
  const auto address = reinterpret_cast<uintptr_t>(memory);
  operator delete(memory, bytes);
  return address;
}

TEST_F(FreedEndpointsTest, MemoryOfAFreedEndpointIsNotReused) {
  std::set<uintptr_t> freed;
  for (int i = 0; i < 100; ++i) freed.insert(Free(kEndpointBytes));
  EXPECT_EQ(freed.size(), 100);
  EXPECT_EQ(Free(kEndpointBytes + 64), Free(kEndpointBytes + 64));
}

TEST_F(FreedEndpointsTest, KeepsAtMostTheMaximum) {
  std::set<uintptr_t> freed;
  for (size_t i = 0; i < kFreedEndpointsMax; ++i) freed.insert(Free(kEndpointBytes));
  EXPECT_EQ(freed.size(), kFreedEndpointsMax);
  for (size_t i = 0; i < 2 * kFreedEndpointsMax; ++i) freed.insert(Free(kEndpointBytes));
  EXPECT_LT(freed.size(), 2 * kFreedEndpointsMax);
}

// If this fails after an update of gRPC, check whether that gRPC still has the fault, and how large
// its connection object is.
TEST_F(FreedEndpointsTest, TheConnectionObjectOfGrpcHasTheAssumedSize) {
  grpc::CallbackGenericService none;
  grpc::ServerBuilder builder;
  builder.RegisterCallbackGenericService(&none);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  const uint64_t before = FreedEndpoints();
  grpc::AddInsecureChannelFromFd(server.get(), ends[0]);
  grpc::CreateInsecureChannelFromFd("test", ends[1]).reset();
  server->Shutdown();
  const TimePoint until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (FreedEndpoints() < before + 2 && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(FreedEndpoints(), before + 2) << "one endpoint at each end of the connection";
}

}  // namespace
}  // namespace larder
