#include "server/runtime/version.h"

namespace larder {

const char* Version() { return LARDER_VERSION; }

}  // namespace larder
