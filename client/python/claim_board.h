// A ClaimBoard over memory that Python owns.
//
// Thread-safety: the caller of constructor and destructor holds the GIL; the board needs no GIL.
#pragma once

#include "client/claims/claim_board.h"
#include "client/python/buffer.h"

namespace larder::python {

struct PyClaimBoard {
  explicit PyClaimBoard(nb::handle memory)
      : buffer(memory, /*writable=*/true), board(Checked(buffer.bytes())) {}
  // Raises ValueError if the memory does not fit.
  static std::span<std::byte> Checked(std::span<std::byte> bytes) {
    if (bytes.size() < ClaimBoard::kBytes || reinterpret_cast<uintptr_t>(bytes.data()) % 64 != 0)
      Raise(absl::InvalidArgumentError("a board needs CLAIM_BOARD_BYTES, aligned to 64"));
    return bytes;
  }
  const Buffer buffer;
  ClaimBoard board;
};

}  // namespace larder::python
