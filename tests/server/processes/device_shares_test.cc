#include "server/processes/device_shares.h"

#include <fcntl.h>
#include <gtest/gtest.h>

namespace larder {
namespace {

constexpr ProcessId kOwner{1}, kOther{2};
constexpr uid_t kUid = 1000;

DeviceShares::Share ByHandle() { return {MiB(2), DeviceHandle{}}; }
DeviceShares::Share ByDescriptor() {
  return {MiB(2), FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC))};
}

TEST(DeviceSharesTest, OnlyProcessesOfTheSharingUidCanOpen) {
  DeviceShares shares({});
  const auto ticket = shares.Add(kOwner, kUid, ByDescriptor());
  ASSERT_TRUE(ticket.ok());
  EXPECT_TRUE(shares.Open(kUid, *ticket).ok());
  EXPECT_TRUE(absl::IsNotFound(shares.Open(kUid + 1, *ticket).status()));
  EXPECT_TRUE(absl::IsNotFound(shares.Open(kUid, ShareTicket{}).status()));
}

TEST(DeviceSharesTest, OnlyTheOwnerCanDrop) {
  DeviceShares shares({});
  const auto ticket = shares.Add(kOwner, kUid, ByHandle());
  ASSERT_TRUE(ticket.ok());
  EXPECT_FALSE(shares.Drop(kOther, *ticket));
  EXPECT_TRUE(shares.Drop(kOwner, *ticket));
  EXPECT_FALSE(shares.Drop(kOwner, *ticket));
  EXPECT_EQ(shares.count(), 0u);
}

TEST(DeviceSharesTest, TheDeathOfAnOwnerDropsItsShares) {
  DeviceShares shares({});
  const auto gone = shares.Add(kOwner, kUid, ByDescriptor());
  const auto stays = shares.Add(kOther, kUid, ByHandle());
  ASSERT_TRUE(gone.ok() && stays.ok());
  shares.DropProcess(kOwner);
  shares.DropProcess(kOwner);
  EXPECT_TRUE(absl::IsNotFound(shares.Open(kUid, *gone).status()));
  EXPECT_TRUE(shares.Open(kUid, *stays).ok());
}

TEST(DeviceSharesTest, LimitsHold) {
  DeviceShares shares({.process_shares_max = 2, .shares_max = 3});
  std::vector<ShareTicket> tickets;
  for (int i = 0; i < 2; ++i) tickets.push_back(shares.Add(kOwner, kUid, ByHandle()).value());
  EXPECT_TRUE(absl::IsResourceExhausted(shares.Add(kOwner, kUid, ByHandle()).status()));
  ASSERT_TRUE(shares.Add(kOther, kUid, ByHandle()).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(shares.Add(kOther, kUid, ByHandle()).status()));
  EXPECT_TRUE(shares.Drop(kOwner, tickets[0]));
  EXPECT_TRUE(shares.Add(kOwner, kUid, ByHandle()).ok());
}

}  // namespace
}  // namespace larder
