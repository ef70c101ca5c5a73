// How the command line names blocks, and the selections that the daemon is then asked for.
//
//   KEY...            VARIANT:DIGEST or DIGEST in hexadecimal digits; "-" reads keys from standard
//                     input and @FILE reads them from a file: the first word of each line
//   --tokens LIST     the blocks of a prompt, with --model ...
//   --prefix LIST     every block whose chain begins with these tokens, with --model ...
//   --content         every block of --model ...
//   --all             every block
//   --writer-uid UID  every block that processes of this user stored; with --writer-engine ID only
//                     those that they stored for this engine
//
// Ownership: a ContentOptions or BlockOptions must live as long as the CommandTree.
// Thread-safety: none.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/pages/verb_options.h"
#include "client/cli/shell/interrupt.h"
#include "proto/messages/messages.h"

namespace larder::cli {

struct ContentOptions {
  void AddTo(VerbOptions& verb);
  // Returns InvalidArgument if --model is missing or an option is malformed.
  [[nodiscard]] absl::StatusOr<ContentSpec> Content() const;
  [[nodiscard]] bool any() const;

  std::string model, revision, salt, lora, multimodal;
};

// Reads token ids that are separated by commas, white space or brackets.  "@FILE" reads them from a
// file, "-" from standard input.  Returns InvalidArgument unless there are 1 to
// wire::kLookupTokensMax words, all of them token ids; or another error if it cannot read them.
[[nodiscard]] absl::StatusOr<std::vector<uint32_t>> ReadTokens(const std::string& text,
                                                               Interrupt& interrupt);
// A digest is 32 hexadecimal digits.
[[nodiscard]] absl::StatusOr<Digest> ParseDigest(std::string_view text);

// REQUIRES: `word` is "device", "host" or "disk", as VerbOptions::AddWord has checked.
[[nodiscard]] Tier TierNamed(std::string_view word);
// Returns the set with the tier of the word, or, for "all", the empty set: the daemon then takes
// its default tiers.
[[nodiscard]] TierSet TiersNamed(std::string_view word);

class BlockOptions {
 public:
  enum class Scopes { kNames, kEveryScope };
  void AddTo(VerbOptions& verb, Scopes scopes);

  [[nodiscard]] bool named() const { return !keys_.empty() || !tokens_.empty(); }

  // The blocks that one call is about.
  struct Part {
    wire::SelectionScope scope = wire::SelectionScope::kBlocks;
    wire::BlockSelection blocks;
  };
  // Returns what the command line names, in one part for each call of the daemon.  A part has at
  // most 4,096 keys.  Returns InvalidArgument if no blocks are named or they are named in more than
  // one way, or another error.
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
