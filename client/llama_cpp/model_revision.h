// Names the weights of a model file, so that KV is only ever given to the model that computed it.
//
// The whole file is hashed: fine-tuned models often differ only in the middle.  That is about a
// second per 1.5 GB; whoever knows a name that changes with the weights may use it instead.
// Thread-safety: a pure function of the file.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace larder::llama {

// "sha256:" and 64 lower-case digits.  NotFound when the file cannot be opened, DataLoss when it
// cannot be read.
[[nodiscard]] absl::StatusOr<std::string> ModelRevision(const std::string& path);
// 12 digits that stand for a revision, whatever it looks like, in the name of a file.
[[nodiscard]] std::string ShortRevision(const std::string& revision);

}  // namespace larder::llama
