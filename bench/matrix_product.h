// A bf16 matrix product that keeps a GPU busy, as an engine's prefill does.  It is cuBLAS's, loaded
// at run time.
//
// Ownership: owns its operands and a stream of normal priority.  Thread-safety: none.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "cuda/device.h"

namespace larder::bench {

class MatrixProduct {
 public:
  static constexpr int kSide = 8192;
  static constexpr double kOperations = 2.0 * kSide * kSide * kSide;

  // Returns Unavailable if this machine has no libcublas of CUDA 12 or 13.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<MatrixProduct>> Make(Device& device);
  ~MatrixProduct();
  MatrixProduct(const MatrixProduct&) = delete;
  MatrixProduct& operator=(const MatrixProduct&) = delete;

  // Queues `count` products without waiting for them.
  [[nodiscard]] absl::Status Start(int count);
  // Whether all products that were started are done.
  [[nodiscard]] absl::StatusOr<bool> Done();

 private:
  struct Impl;
  explicit MatrixProduct(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace larder::bench
