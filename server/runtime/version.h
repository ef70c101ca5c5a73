// The version of this program, which CMake takes from the project.
#pragma once

namespace larder {

[[nodiscard]] const char* Version();  // such as "0.1.0"

}  // namespace larder
