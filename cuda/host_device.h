// The device that every machine has: memory of the process, threads as queues, memfds as exports.
//
// The reference implementation of device.h: its behavior defines what a device does, and tests
// without a GPU run on it.  Each queue is a thread, so work in two queues that no event and no Wait
// orders runs in any order, as on a GPU.
//
// Ownership, thread-safety, lifecycle: as device.h says.
// Limits: one thread for each queue; SharePath::kHandle is not available.
#pragma once

#include <memory>
#include <string>

#include "cuda/device.h"

namespace larder {

// `wish` and `reason` are what its DeviceInfo reports: the wish that OpenDevice was called with,
// and why it opened no CUDA device.
[[nodiscard]] std::unique_ptr<Device> MakeHostDevice(DeviceWish wish = DeviceWish::kHost,
                                                     std::string reason = {});

}  // namespace larder
