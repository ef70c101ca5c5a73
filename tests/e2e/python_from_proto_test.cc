// Runs clients that know only the .proto files (python_from_proto.py, python_verbs.py) against the
// real daemon.
#include <cstdlib>

#include "gtest/gtest.h"
#include "tests/e2e/support/daemon_process.h"

namespace larder::e2e {
namespace {

TEST(PythonFromProto, SpeaksTheWholeContract) {
  DaemonProcess daemon;
  ASSERT_TRUE(daemon.serves()) << daemon.errors();
  const std::string command = "/usr/bin/python3 -B " LARDER_PYTHON_CLIENT " " LARDER_PROTO_DIR " " +
                              daemon.folder()->path();
  ASSERT_EQ(std::system(command.c_str()), 0)
      << "the script failed; deploy/install-deps.sh installs the packages that it needs";
  EXPECT_EQ(daemon.Wait(), 0) << "the script drains the daemon: " << daemon.errors();
}

// The script starts its own daemon, kills it and starts it again.
TEST(PythonFromProto, DrivesEveryVerb) {
  ASSERT_EQ(
      std::system("/usr/bin/python3 -B " LARDER_PYTHON_VERBS " " LARDER_PROTO_DIR " " LARDERD_PATH),
      0);
}

// The script drives the verbs on blocks that the engine of a real model has stored.
TEST(PythonFromProto, DrivesEveryVerbOnTheKvOfARealModel) {
#ifndef LARDER_LLAMA_PATH
  GTEST_SKIP() << "built without llama.cpp; tests/run.sh builds with it";
#else
  ASSERT_EQ(std::system("/usr/bin/python3 -B " LARDER_PYTHON_VERBS " " LARDER_PROTO_DIR
                        " " LARDERD_PATH " " LARDER_LLAMA_PATH " $(" LARDER_SOURCE_DIR
                        "/deploy/fetch-model.sh) " LARDER_SOURCE_DIR "/deploy/quickstart.txt"),
            0);
#endif
}

}  // namespace
}  // namespace larder::e2e
