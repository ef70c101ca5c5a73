// How blocks are named on the command line, and what the daemon is asked for then.
//
//   KEY...            VARIANT:DIGEST or DIGEST in hexadecimal digits; "-" reads them from standard
//                     input and @FILE from a file: the first word of each line
//   --tokens LIST     the blocks of a prompt, with --model ...
//   --prefix LIST     every block whose tokens begin so, with --model ...
//   --content         every block of --model ...
//   --all             every block
//   --writer-uid UID  every block that processes of this user stored, and, with --writer-engine ID,
//                     stored for this engine
//
// Ownership: lives as long as the App that it was added to.  Thread-safety: none.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/shell/interrupt.h"
#include "proto/messages/messages.h"

namespace larder::cli {

struct ContentOptions {
  void AddTo(CLI::App& app);
  // InvalidArgument: no model, or a salt that is none.
  [[nodiscard]] absl::StatusOr<ContentSpec> Content() const;
  [[nodiscard]] bool any() const;

  std::string model, revision, salt, lora, multimodal;
};

// Token ids, between commas or blanks; of "@FILE" and "-" what is there.
[[nodiscard]] absl::StatusOr<std::vector<uint32_t>> ReadTokens(const std::string& text,
                                                               Interrupt& interrupt);
// 32 digits.
[[nodiscard]] absl::StatusOr<Digest> ParseDigest(std::string_view text);

// "device", "host", "disk", as AddWord had them checked.
[[nodiscard]] Tier TierNamed(std::string_view word);
// Also "all", which is for the daemon to say.
[[nodiscard]] TierSet TiersNamed(std::string_view word);

class BlockOptions {
 public:
  enum class Scopes { kNames, kEveryScope };
  void AddTo(CLI::App& app, Scopes scopes);

  [[nodiscard]] bool named() const { return !keys_.empty() || !tokens_.empty(); }

  // What one call is asked for.
  struct Part {
    wire::SelectionScope scope = wire::SelectionScope::kBlocks;
    wire::BlockSelection blocks;
  };
  // Keys of one variant together, at most as many as a call takes.  InvalidArgument: nothing is
  // named, or in two ways.
  [[nodiscard]] absl::StatusOr<std::vector<Part>> Parts(Interrupt& interrupt) const;

 private:
  [[nodiscard]] absl::StatusOr<wire::BlockSelection> Variants() const;
  [[nodiscard]] absl::StatusOr<BlockWriter> Writer() const;
  [[nodiscard]] absl::StatusOr<std::vector<Part>> PartsOfKeys(Interrupt& interrupt) const;

  std::vector<std::string> keys_, variants_;
  std::string engine_, tokens_, prefix_, writer_uid_, writer_engine_;
  bool content_ = false, all_ = false;
  ContentOptions content_options_;
};

}  // namespace larder::cli
