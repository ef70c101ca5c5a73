#include "client/cli/shell/shell.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/shell/table.h"
#include "client/cli/shell/terminal.h"
#include "client/local/socket_dir.h"
#include "proto/frames/file_descriptor.h"
#include "storage/status_macros.h"
#include "storage/text.h"

namespace larder::cli {
namespace {

// Returns the errno of connecting to a socket file, or 0 if a process listens there.
int ConnectErrno(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return ENAMETOOLONG;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return errno;
  const int failed =
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  return failed == 0 || errno == EAGAIN ? 0 : errno;
}

}  // namespace

std::string Shell::SocketFolder() const {
  const size_t slash = options_.socket.rfind('/');
  return slash == std::string::npos ? SocketDir(options_.socket_dir)
                                    : options_.socket.substr(0, slash);
}

absl::Status Shell::Probe(const std::string& path, const std::string& who) {
  const int error = ConnectErrno(path);
  const std::string shown = Printable(path);
  switch (error) {
    case 0:
      return absl::OkStatus();
    case EACCES:
    case EPERM:
      next_ = absl::StrCat("sudo larderctl ", verb_);
      return absl::PermissionDeniedError(
          absl::StrCat("no permission to open ", shown, ", which is for ", who));
    case ENAMETOOLONG:
      next_ = "larderctl --help";
      return absl::InvalidArgumentError(
          absl::StrCat(shown, " is too long for the path of a socket file"));
    default:
      next_ = "larderd --pool 8GiB, or larderctl --socket-dir DIR of a running larderd";
      return absl::UnavailableError(absl::StrCat("no larderd answers at ", shown, ": ",
                                                 error == ECONNREFUSED
                                                     ? "the larderd that made the file has ended"
                                                     : std::strerror(error)));
  }
}

std::string Shell::ControlSocket() const {
  return options_.socket.empty() ? SocketFolder() + "/control.sock" : options_.socket;
}

std::string Shell::AdminSocket() const {
  return options_.admin_socket.empty() ? SocketDir(options_.socket_dir) + "/admin.sock"
                                       : options_.admin_socket;
}

template <class Stub>
absl::StatusOr<Stub*> Shell::Connect(std::unique_ptr<Stub>* stub, const std::string& path) {
  constexpr std::chrono::milliseconds kSlice{100};  // a signal is noticed within this time
  auto made = std::make_unique<Stub>(RpcOptions{.socket_path = path});
  for (std::chrono::milliseconds left = Limits().deadline; left.count() > 0; left -= kSlice) {
    if (made->WaitConnected(std::min(left, kSlice)).ok()) {
      *stub = std::move(made);
      return stub->get();
    }
    if (interrupt_.signal() != 0) return absl::CancelledError("interrupted");
  }
  next_ = "kill -CONT PID if the process is stopped; otherwise its log, as it may be overloaded";
  return absl::DeadlineExceededError(
      absl::StrCat("larderd listens at ", Printable(path), " but does not answer"));
}

absl::StatusOr<RpcStub*> Shell::Cache() {
  if (cache_ != nullptr) return cache_.get();
  LARDER_RETURN_IF_ERROR(
      Probe(ControlSocket(), "routers, schedulers and operators in the group of the file"));
  return Connect(&cache_, ControlSocket());
}

absl::Status Shell::ProbeAdmin() { return Probe(AdminSocket(), "the user that runs larderd"); }

absl::StatusOr<AdminStub*> Shell::Admin() {
  if (admin_ != nullptr) return admin_.get();
  LARDER_RETURN_IF_ERROR(ProbeAdmin());
  return Connect(&admin_, AdminSocket());
}

CallLimits Shell::Limits(std::chrono::milliseconds usual) {
  return {options_.timeout.count() > 0 ? options_.timeout : usual, &interrupt_.cancel()};
}

size_t Shell::width() const { return ColumnsOf(STDOUT_FILENO); }

void Shell::Print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);  // so that it precedes what Say prints later
}

void Shell::PrintLines(std::string_view text) {
  if (width() == 0) return Print(text);
  std::string lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    absl::StrAppend(&lines, Cut(Printable(text.substr(at, end - at)), width()), "\n");
    at = end + 1;
  }
  Print(lines);
}

void Shell::PrintJson(const Json& value, bool one_line) {
  // JSON must be UTF-8, but names need not be.
  Print(value.dump(one_line ? -1 : 2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void Shell::Say(std::string_view sentence) {
  std::fputs(Wrap(sentence, ColumnsOf(STDERR_FILENO), 2, "larderctl: ").c_str(), stderr);
}

void Shell::SayNext(std::string_view command) {
  std::fputs(Wrap(command, ColumnsOf(STDERR_FILENO), 8, "  next: ").c_str(), stderr);
}

ExitCode Shell::Fail(const absl::Status& status, std::string_view next) {
  std::string to_run(next);
  if (to_run.empty()) to_run = next_.empty() ? NextOf(status) : std::exchange(next_, {});
  const int signal = interrupt_.signal();
  if (signal != 0 && (absl::IsCancelled(status) || absl::IsDeadlineExceeded(status))) {
    Say("interrupted: the call was cancelled, and what it had done by then stays done");
    SayNext(absl::StrCat("the same larderctl ", verb_, " command does the rest"));
    return static_cast<ExitCode>(128 + signal);
  }
  Say(Printable({status.message().data(), status.message().size()}));
  SayNext(to_run);
  return ExitCodeOf(status);
}

std::string Shell::NextOf(const absl::Status& status) const {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
      return "larderctl status, then repeat the command";
    case absl::StatusCode::kDeadlineExceeded:
      return absl::StrCat("larderctl ", verb_, " with a longer --timeout, such as 10min");
    case absl::StatusCode::kFailedPrecondition:
      return "larderctl config";
    default:
      return absl::StrCat("larderctl ", verb_, " --help");
  }
}

absl::Status Shell::Confirm(const std::string& question, bool yes) {
  if (yes) return absl::OkStatus();
  if (!IsTerminal(STDIN_FILENO) || !IsTerminal(STDERR_FILENO)) {
    next_ = absl::StrCat("the same command with --yes, or larderctl ", verb_, " --help");
    return absl::InvalidArgumentError(
        "cannot ask for confirmation without a terminal, so nothing was done");
  }
  const std::string asked = Wrap(absl::StrCat(question, " [y/N] "), ColumnsOf(STDERR_FILENO), 2);
  std::fputs(asked.substr(0, asked.size() - 1).c_str(), stderr);
  std::fputs(" ", stderr);
  std::fflush(stderr);
  char answer[64] = {};
  if (!interrupt_.AwaitInput(STDIN_FILENO) || read(STDIN_FILENO, answer, sizeof answer - 1) <= 0) {
    std::fputs("\n", stderr);
    return absl::CancelledError("not confirmed, so nothing was done");
  }
  const absl::string_view word = absl::StripAsciiWhitespace(answer);
  if (absl::EqualsIgnoreCase(word, "y") || absl::EqualsIgnoreCase(word, "yes"))
    return absl::OkStatus();
  next_ = "the same command, and answer y; larderctl clear --dry-run only reports";
  return absl::InvalidArgumentError("not confirmed, so nothing was done");
}

}  // namespace larder::cli
