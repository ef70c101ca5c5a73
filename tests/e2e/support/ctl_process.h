// larderctl as an operator runs it: arguments in; what it wrote and how it ended out.
//
// Thread-safety: each call is of its own.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace larder::e2e {

struct CtlOptions {
  std::string socket_dir = {};
  // On standard input, then its end; on a terminal it is typed once a question "[y/N]" is asked.
  std::string input = {};
  unsigned short columns = 0;  // of a terminal that is all three streams; 0: pipes
  std::optional<uid_t> uid = {};
  bool reader_gone = false;                   // nobody reads its standard output
  std::string signal_at = {};                 // SIGINT once it has written this, to any stream
  std::string shell_line = {};                // bash runs this, where larderctl is in PATH
  std::string folder = {};                    // where it runs; default: that of the test
  std::vector<std::string> environment = {};  // "NAME=value", beside that of the test
};

struct CtlOutcome {
  int code = -1;         // 128 + the signal that ended it
  std::string out, err;  // of a terminal all is in `out`
};

[[nodiscard]] CtlOutcome RunCtl(const std::vector<std::string>& arguments,
                                const CtlOptions& options);
// Of the longest line, as a terminal shows it.
[[nodiscard]] size_t LongestLine(const std::string& text);

}  // namespace larder::e2e
