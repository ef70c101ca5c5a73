// A bf16 matrix product that keeps a GPU busy, as an engine's prefill does: cuBLAS's, found at run
// time.
//
// Ownership: its operands, and a stream of normal priority.  Thread-safety: none.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "cuda/device.h"

namespace larder::bench {

class MatrixProduct {
 public:
  static constexpr int kSide = 8192;
  static constexpr double kOperations = 2.0 * kSide * kSide * kSide;

  // Unavailable: no libcublas of CUDA 12 or 13 here.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<MatrixProduct>> Make(Device& device);
  ~MatrixProduct();
  MatrixProduct(const MatrixProduct&) = delete;
  MatrixProduct& operator=(const MatrixProduct&) = delete;

  // Queues `count` products; does not wait.
  [[nodiscard]] absl::Status Start(int count);
  // All that were started are done.
  [[nodiscard]] absl::StatusOr<bool> Done();

 private:
  struct Impl;
  explicit MatrixProduct(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace larder::bench
