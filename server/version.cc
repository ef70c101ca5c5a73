#include "server/version.h"

namespace larder {

const char* Version() { return LARDER_VERSION; }

}  // namespace larder
