// larderctl queries and controls larderd.  This file builds the tree of larderctl's verbs
// (subcommands) and runs the verb that the command line names.
// Exit codes: client/cli/shell/exit_code.h.
#include <csignal>
#include <cstdio>

#include "client/cli/pages/command_tree.h"
#include "client/cli/shell/interrupt.h"
#include "client/cli/verbs/verbs.h"

namespace larder::cli {
namespace {

void AddVerbs(CommandTree& tree) {
  AddStatus(tree);
  AddTop(tree);
  AddInstances(tree);
  AddLookup(tree);
  AddWatch(tree);
  AddPrefetch(tree);
  AddPin(tree);
  AddUnpin(tree);
  AddMove(tree);
  AddCompress(tree);
  AddClear(tree);
  AddVerify(tree);
  AddBench(tree);
  AddProfile(tree);
  AddDump(tree);
  AddConfig(tree);
  AddDrain(tree);
  AddCompletion(tree);
}

int Main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_DFL);  // a write to a closed pipe ends larderctl without a message
  Interrupt interrupt;
  CommandTree tree;
  AddVerbs(tree);
  const int code = static_cast<int>(tree.Run(argc, argv, interrupt));
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  std::fputs(
      "larderctl: cannot write to standard output\n  next: df, if it is redirected to a file\n",
      stderr);
  return static_cast<int>(ExitCode::kFailed);
}

}  // namespace
}  // namespace larder::cli

int main(int argc, char** argv) { return larder::cli::Main(argc, argv); }
