// Checks the state that a daemon must have once all its clients have gone.
#pragma once

#include <functional>

#include "gtest/gtest.h"
#include "tests/e2e/support/daemon_process.h"

namespace larder::e2e {

inline bool HoldsNothing(const v1::TenantStats& t) {
  return t.pool_limit() > 0 && t.leases() == 0 && t.reservations() == 0 && t.pool_reserved() == 0 &&
         t.pool_leased() == 0 && t.pool_quarantined() == 0 &&
         t.pool_stored() + t.pool_free() == t.pool_limit();
}

// Waits until the daemon has no client, and returns how many descriptors it has open.
// REQUIRES: a client was there before, so that the descriptors that gRPC opens once, and which are
// no leak, are counted.
inline size_t SettledDescriptors(const DaemonProcess& daemon) {
  EXPECT_TRUE(Eventually([&] { return daemon.Metric("larder_processes") == 0; }));
  return daemon.OpenDescriptors();
}

// Expects that the daemon holds nothing, and then ends it.  `open` returns the number of
// descriptors to compare with `descriptors_before`.
inline void ExpectNothingLeft(DaemonProcess& daemon, size_t descriptors_before,
                              const std::function<size_t()>& open) {
  EXPECT_TRUE(Eventually([&] {
    const v1::TenantStats t = daemon.Tenant();
    return HoldsNothing(t) && t.sessions() == 0;
  })) << daemon.Tenant().ShortDebugString();
  EXPECT_TRUE(Eventually([&] { return daemon.Metric("larder_processes") == 0; }));
  EXPECT_EQ(daemon.Metric("larder_sideband_connections_open"), 0);
  // This holds however many calls there were, and whichever side ended them.
  EXPECT_TRUE(Eventually([&] {
    return daemon.Metric("larder_incoming_bytes{what=\"held\"}") == 0;
  })) << daemon.Metric("larder_incoming_bytes{what=\"held\"}");
  EXPECT_TRUE(Eventually([&] { return open() <= descriptors_before; }))
      << open() << " descriptors, " << descriptors_before << " before:" << daemon.DescriptorTexts();
  EXPECT_EQ(daemon.Terminate(), 0) << daemon.errors();
}

inline void ExpectNothingLeft(DaemonProcess& daemon, size_t descriptors_before) {
  ExpectNothingLeft(daemon, descriptors_before, [&] { return daemon.OpenDescriptors(); });
}

}  // namespace larder::e2e
