// The device that every machine has: memory of the process, threads as queues, memfds as exports.
//
// The reference implementation of device.h: its behavior is the documentation, and tests without a
// GPU run on it.  Each queue is a thread, so work that no event and no Wait orders is unordered
// here too.
//
// Ownership, thread-safety, lifecycle: as device.h says.
// Limits: one thread for each queue; SharePath::kHandle is not available.
#pragma once

#include <memory>
#include <string>

#include "cuda/device.h"

namespace larder {

// DeviceInfo reports `wish`, the device that was asked for, and `reason`, why this one was opened.
[[nodiscard]] std::unique_ptr<Device> MakeHostDevice(DeviceWish wish = DeviceWish::kHost,
                                                     std::string reason = {});

}  // namespace larder
