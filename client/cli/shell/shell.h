// What a verb (subcommand) of larderctl works with: stubs to call the daemon, the streams that it
// writes to, and the terminal at which it asks the user to confirm.
//
// Data goes to standard output, everything else to standard error.  An error is one sentence and
// the next command to run.
// Ownership: CommandTree::Run owns it; options and interrupt outlive it.  Thread-safety: none.
#pragma once

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/shell/exit_code.h"
#include "client/cli/shell/interrupt.h"
#include "client/rpc/admin_stub.h"
#include "client/rpc/rpc_stub.h"

namespace larder::cli {

using Json = nlohmann::ordered_json;

// The options of every verb.
struct CommonOptions {
  std::string socket_dir;    // "": the client library's default
  std::string socket;        // "": control.sock in socket_dir
  std::string admin_socket;  // "": admin.sock in socket_dir
  std::string tenant;        // "": the caller's own
  std::string output = "table";
  std::chrono::milliseconds timeout{0};  // 0: the verb's default
};

class Shell {
 public:
  Shell(const CommonOptions& options, Interrupt& interrupt)
      : options_(options), interrupt_(interrupt) {}

  [[nodiscard]] const CommonOptions& options() const { return options_; }
  [[nodiscard]] bool json() const { return options_.output == "json"; }
  [[nodiscard]] Interrupt& interrupt() { return interrupt_; }
  // The name of the verb that runs, for messages.
  void SetVerb(std::string verb) { verb_ = std::move(verb); }
  // Returns the folder of --socket if that names one, otherwise --socket-dir or its default.
  [[nodiscard]] std::string SocketFolder() const;

  // Connects to the daemon's Cache service unless it is connected.  Returns Unavailable if no
  // daemon listens, DeadlineExceeded if one listens but does not answer within Limits(), or another
  // error.
  [[nodiscard]] absl::StatusOr<RpcStub*> Cache();
  // Connects to the daemon's Admin service unless it is connected.  Fails as Cache does.
  [[nodiscard]] absl::StatusOr<AdminStub*> Admin();
  // Returns OK if a process listens at the socket file of the Admin service, even if it does not
  // answer.
  [[nodiscard]] absl::Status ProbeAdmin();
  // Returns the limits of a call: its deadline is --timeout if that is given, otherwise `usual`,
  // and a signal cancels it.
  [[nodiscard]] CallLimits Limits(std::chrono::milliseconds usual = std::chrono::seconds(30));

  void Print(std::string_view text);  // to standard output
  // Prints to standard output, on a terminal with unprintable characters replaced and each line cut
  // to the width of the terminal; elsewhere the text is unchanged.
  void PrintLines(std::string_view text);
  void PrintJson(const Json& value, bool one_line = false);
  void Say(std::string_view sentence);     // to standard error
  void SayNext(std::string_view command);  // the command to run next, to standard error
  // Prints what went wrong and what to run next: usually `next`, or, if that is empty, what suits
  // the error.  Returns the exit code: 128 plus the signal if a signal cancelled the call,
  // otherwise ExitCodeOf(status).
  [[nodiscard]] ExitCode Fail(const absl::Status& status, std::string_view next = "");
  // Returns OK if the user confirms, or has done so with --yes (`yes`); otherwise an error, also if
  // there is no terminal to ask at.
  [[nodiscard]] absl::Status Confirm(const std::string& question, bool yes);
  // Columns of the terminal at standard output; 0 if standard output is no terminal.
  [[nodiscard]] size_t width() const;

 private:
  [[nodiscard]] std::string ControlSocket() const;
  [[nodiscard]] std::string AdminSocket() const;
  [[nodiscard]] absl::Status Probe(const std::string& path, const std::string& who);
  // Waits until the daemon answers.  Probe has found only that a process listens, which a suspended
  // daemon does too.
  template <class Stub>
  [[nodiscard]] absl::StatusOr<Stub*> Connect(std::unique_ptr<Stub>* stub, const std::string& path);
  [[nodiscard]] std::string NextOf(const absl::Status& status) const;

  const CommonOptions& options_;
  Interrupt& interrupt_;
  std::string verb_;
  std::string next_;  // what a failed Probe, Connect or Confirm suggests to run next
  std::unique_ptr<RpcStub> cache_;
  std::unique_ptr<AdminStub> admin_;
};

}  // namespace larder::cli
