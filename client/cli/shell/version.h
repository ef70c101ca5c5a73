// The version of larderctl, which is the project's.
#pragma once

namespace larder::cli {

[[nodiscard]] const char* Version();  // "0.1.0"

}  // namespace larder::cli
