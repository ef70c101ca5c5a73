// The version that this program was built as; the project's, from CMake.
#pragma once

namespace larder {

[[nodiscard]] const char* Version();  // "0.1.0"

}  // namespace larder
