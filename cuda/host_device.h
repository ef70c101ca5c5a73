// The device that every machine has: memory of the process, threads as queues, memfds as exports.
//
// The reference implementation of device.h.  Each queue is a thread, so work in two queues runs in
// any order unless an event or a Wait orders it, as on a GPU.
//
// Ownership and thread-safety: those of device.h.
// Limits: one thread for each queue.  A Gather or Scatter moves at most 2^31 - 1 pieces
// (MoveBlocksMax in gather_scatter.h).  SharePath::kHandle and AdoptQueue are not available.
#pragma once

#include <memory>
#include <string>

#include "cuda/device.h"

namespace larder {

// Makes a host device whose DeviceInfo reports `wish` and `reason`.
[[nodiscard]] std::unique_ptr<Device> MakeHostDevice(DeviceWish wish = DeviceWish::kHost,
                                                     std::string reason = {});

}  // namespace larder
