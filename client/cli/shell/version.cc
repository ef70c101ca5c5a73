#include "client/cli/shell/version.h"

namespace larder::cli {

const char* Version() { return LARDER_VERSION; }

}  // namespace larder::cli
