// What a verb works with: the daemon it asks, the streams it writes to, the user it may ask back.
//
// Data goes to standard output, everything else to standard error.  An error is one sentence and
// the next command to run.
// Ownership: by main; the interrupt outlives it.  Thread-safety: none.
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

// Those of every verb.
struct CommonOptions {
  std::string socket_dir;    // "": as the library finds it
  std::string socket;        // "": control.sock there
  std::string admin_socket;  // "": admin.sock there
  std::string tenant;        // "": the caller's own
  std::string output = "table";
  std::chrono::milliseconds timeout{0};  // 0: the verb's own
};

class Shell {
 public:
  Shell(const CommonOptions& options, Interrupt& interrupt)
      : options_(options), interrupt_(interrupt) {}

  [[nodiscard]] const CommonOptions& options() const { return options_; }
  [[nodiscard]] bool json() const { return options_.output == "json"; }
  [[nodiscard]] Interrupt& interrupt() { return interrupt_; }
  // The verb that runs, for what is said.
  void SetVerb(std::string verb) { verb_ = std::move(verb); }
  // Of Cache's socket file.
  [[nodiscard]] std::string SocketFolder() const;

  // Connected at the first call.  Unavailable: there is no daemon.  PermissionDenied: no rights.
  [[nodiscard]] absl::StatusOr<RpcStub*> Cache();
  [[nodiscard]] absl::StatusOr<AdminStub*> Admin();
  // Whether somebody listens at the operator's socket.
  [[nodiscard]] absl::Status ProbeAdmin();
  // --timeout, else `usual`; ended by Ctrl-C.
  [[nodiscard]] CallLimits Limits(std::chrono::milliseconds usual = std::chrono::seconds(30));

  void Print(std::string_view text);  // to standard output
  // The same, its lines cut where the terminal ends; in a pipe as it is.
  void PrintLines(std::string_view text);
  void PrintJson(const Json& value, bool one_line = false);
  void Say(std::string_view sentence);     // to standard error
  void SayNext(std::string_view command);  // what to run next
  // Says what went wrong, and what to run next: `next`, or what follows from the status.
  [[nodiscard]] ExitCode Fail(const absl::Status& status, std::string_view next = "");
  // OK when the user says yes, or said so with --yes.  InvalidArgument: he does not, or nobody can
  // be asked.
  [[nodiscard]] absl::Status Confirm(const std::string& question, bool yes);
  // Columns of a table.
  [[nodiscard]] size_t width() const;

 private:
  [[nodiscard]] std::string ControlSocket() const;
  [[nodiscard]] std::string AdminSocket() const;
  [[nodiscard]] absl::Status Probe(const std::string& path, const std::string& who);
  // Somebody listens; whether he answers is another question.
  template <class Stub>
  [[nodiscard]] absl::StatusOr<Stub*> Connect(std::unique_ptr<Stub>* stub, const std::string& path);
  [[nodiscard]] std::string NextOf(const absl::Status& status) const;

  const CommonOptions& options_;
  Interrupt& interrupt_;
  std::string verb_;
  std::string next_;  // of a failed Probe
  std::unique_ptr<RpcStub> cache_;
  std::unique_ptr<AdminStub> admin_;
};

}  // namespace larder::cli
