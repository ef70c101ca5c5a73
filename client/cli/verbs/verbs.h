// The verbs (subcommands) of larderctl.  Each has a function that adds it to the CommandTree; a new
// verb needs a file, a line here and a line in larderctl.cc.
#pragma once

#include "client/cli/pages/command_tree.h"

namespace larder::cli {

// node_verbs.cc
void AddStatus(CommandTree& tree);
void AddConfig(CommandTree& tree);
void AddDrain(CommandTree& tree);
// top_verb.cc
void AddTop(CommandTree& tree);
// instance_verbs.cc
void AddInstances(CommandTree& tree);
void AddLookup(CommandTree& tree);
// pin_verbs.cc
void AddPrefetch(CommandTree& tree);
void AddPin(CommandTree& tree);
void AddUnpin(CommandTree& tree);
// move_verb.cc, compress_verb.cc, clear_verb.cc, verify_verb.cc: long-running, with progress
void AddMove(CommandTree& tree);
void AddCompress(CommandTree& tree);
void AddClear(CommandTree& tree);
void AddVerify(CommandTree& tree);
// watch_verb.cc
void AddWatch(CommandTree& tree);
// bench_verb.cc
void AddBench(CommandTree& tree);
// profile_verb.cc
void AddProfile(CommandTree& tree);
// dump_verb.cc
void AddDump(CommandTree& tree);
// completion.cc
void AddCompletion(CommandTree& tree);

}  // namespace larder::cli
