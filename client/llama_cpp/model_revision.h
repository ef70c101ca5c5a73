// Names the weights of a model file, so that KV is used only by the model that computed it.
//
// The whole file is hashed, because two models may differ in any part of it.  That takes long for a
// large file; a caller that has another name, one that changes with the weights, may use that name
// instead.
// Thread-safety: pure functions of file and text.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace larder::llama {

// Returns "sha256:" and 64 lower-case hexadecimal digits.  Returns NotFound if the file cannot be
// opened, DataLoss if it cannot be read.
[[nodiscard]] absl::StatusOr<std::string> ModelRevision(const std::string& path);
// Returns 12 hexadecimal digits that identify a revision, which may be any text, in a file name.
[[nodiscard]] std::string ShortRevision(const std::string& revision);

}  // namespace larder::llama
