#include "tests/e2e/support/ctl_process.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <utility>

#include "proto/frames/file_descriptor.h"
#include "storage/check.h"
#include "tests/e2e/support/die_with.h"

namespace larder::e2e {
namespace {

struct Pipe {
  Pipe() {
    int ends[2];
    LARDER_CHECK(pipe2(ends, O_CLOEXEC) == 0);
    read = FileDescriptor(ends[0]);
    write = FileDescriptor(ends[1]);
  }
  FileDescriptor read, write;
};

[[noreturn]] void Become(const std::vector<std::string>& arguments, const CtlOptions& options,
                         pid_t parent) {
  setenv("LARDER_SOCKET_DIR", options.socket_dir.c_str(), 1);
  for (const std::string& variable : options.environment) {
    const size_t end = variable.find('=');
    setenv(variable.substr(0, end).c_str(), variable.substr(end + 1).c_str(), 1);
  }
  if (options.uid && (setgid(*options.uid) != 0 || setuid(*options.uid) != 0)) _exit(126);
  DieWith(parent);
  if (!options.folder.empty() && chdir(options.folder.c_str()) != 0) _exit(125);
  if (!options.shell_line.empty()) {
    const std::string path = LARDERCTL_PATH;
    setenv("PATH", (path.substr(0, path.rfind('/')) + ":/usr/bin:/bin").c_str(), 1);
    execl("/bin/bash", "bash", "--norc", "-o", "pipefail", "-c", options.shell_line.c_str(),
          nullptr);
  }
  std::vector<char*> pointers = {const_cast<char*>("larderctl")};
  for (const std::string& argument : arguments)
    pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  execv(LARDERCTL_PATH, pointers.data());
  _exit(127);
}

void WriteAll(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno != EINTR) return;  // larderctl no longer reads
    if (n > 0) done += static_cast<size_t>(n);
  }
}

// Runs `action` the first time that `text` contains `*what`, and then clears `*what`.  Does nothing
// if `*what` is empty.
void Once(std::string* what, const std::string& text, const std::function<void()>& action) {
  if (what->empty() || text.find(*what) == std::string::npos) return;
  what->clear();
  action();
}

using Sources = std::vector<std::pair<int, std::string*>>;

// Reads from these descriptors until all of them end.  Calls `heard` after each piece, with all the
// text of its descriptor so far.
void Gather(Sources from, const std::function<void(const std::string&)>& heard) {
  while (!from.empty()) {
    std::vector<pollfd> fds;
    for (const auto& [fd, to] : from) fds.push_back({fd, POLLIN, 0});
    if (poll(fds.data(), fds.size(), -1) < 0) continue;
    for (size_t i = fds.size(); i-- > 0;) {
      if (fds[i].revents == 0) continue;
      char piece[4096];
      const ssize_t n = read(fds[i].fd, piece, sizeof piece);
      if (n <= 0) {  // a terminal fails, rather than ends, once its other side is closed
        from.erase(from.begin() + static_cast<std::ptrdiff_t>(i));
        continue;
      }
      from[i].second->append(piece, static_cast<size_t>(n));
      heard(*from[i].second);
    }
  }
}

int CodeOf(pid_t pid) {
  int status = 0;
  LARDER_CHECK(waitpid(pid, &status, 0) == pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

CtlOutcome RunOnTerminal(const std::vector<std::string>& arguments, const CtlOptions& options) {
  const winsize size = {.ws_row = 50, .ws_col = options.columns, .ws_xpixel = 0, .ws_ypixel = 0};
  int terminal = -1;
  const pid_t parent = getpid();
  const pid_t pid = forkpty(&terminal, nullptr, nullptr, &size);
  LARDER_CHECK(pid >= 0);
  if (pid == 0) Become(arguments, options, parent);
  const FileDescriptor closes(terminal);
  CtlOutcome outcome;
  std::string signal_at = options.signal_at, question = "[y/N]";
  Gather({{terminal, &outcome.out}}, [&](const std::string& text) {
    Once(&signal_at, text, [&] { kill(pid, SIGINT); });
    Once(&question, text, [&] { WriteAll(terminal, options.input); });
  });
  outcome.code = CodeOf(pid);
  return outcome;
}

}  // namespace

CtlOutcome RunCtl(const std::vector<std::string>& arguments, const CtlOptions& options) {
  if (options.columns != 0) return RunOnTerminal(arguments, options);
  Pipe in, out, err;
  if (options.reader_gone) out.read = FileDescriptor();
  const pid_t parent = getpid();
  const pid_t pid = fork();
  LARDER_CHECK(pid >= 0);
  if (pid == 0) {
    dup2(in.read.get(), STDIN_FILENO);
    dup2(out.write.get(), STDOUT_FILENO);
    dup2(err.write.get(), STDERR_FILENO);
    Become(arguments, options, parent);
  }
  in.read = FileDescriptor();
  out.write = FileDescriptor();
  err.write = FileDescriptor();
  CtlOutcome outcome;
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  WriteAll(in.write.get(), options.input);
  std::signal(SIGPIPE, before);
  in.write = FileDescriptor();
  Sources from = {{err.read.get(), &outcome.err}};
  if (!options.reader_gone) from.emplace_back(out.read.get(), &outcome.out);
  std::string signal_at = options.signal_at;
  Gather(std::move(from),
         [&](const std::string& text) { Once(&signal_at, text, [&] { kill(pid, SIGINT); }); });
  outcome.code = CodeOf(pid);
  return outcome;
}

size_t LongestLine(const std::string& text) {
  size_t longest = 0, column = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {  // an escape sequence takes no column and ends with a letter
      while (i < text.size() && !std::isalpha(static_cast<unsigned char>(text[i]))) ++i;
    } else if (text[i] == '\n' || text[i] == '\r') {
      column = 0;
    } else {
      longest = std::max(longest, ++column);
    }
  }
  return longest;
}

}  // namespace larder::e2e
