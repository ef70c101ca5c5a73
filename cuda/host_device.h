// The device that every machine has: memory of the process, threads as queues, memfds as exports.
//
// The reference of device.h: what it does is the documentation, and tests run on it that have no
// GPU.  A queue is a thread, so that what is not ordered by an event or a Wait is not ordered here
// either.
//
// Ownership, thread-safety, lifecycle: as device.h says.
// Limits: 64 queues' threads; kHandle cannot be had.
#pragma once

#include <memory>
#include <string>

#include "cuda/device.h"

namespace larder {

// For its DeviceInfo: what was asked for, and why it is this.
[[nodiscard]] std::unique_ptr<Device> MakeHostDevice(DeviceWish wish = DeviceWish::kHost,
                                                     std::string reason = {});

}  // namespace larder
