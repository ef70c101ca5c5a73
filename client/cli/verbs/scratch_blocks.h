// Blocks that larderctl itself puts and gets through the client library, as an engine does.
//
// The blocks belong to a content that no other process names; Clear removes them again.
// Ownership: a value; borrows the size, the shell and the stub.  Thread-safety: none.
// Lifecycle: Begin -> Put -> Get (any number of times) -> Clear.  Clear also after a failure.
// Limits: wire::kLookupDigestsMax blocks, each of 4 KiB to 256 MiB, a multiple of 1,024 bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/shell/shell.h"
#include "client/client.h"

namespace larder::cli {

struct ScratchSize {
  uint64_t blocks = 256;
  uint64_t bytes = 1 << 20;  // of each block
};
[[nodiscard]] absl::Status Check(const ScratchSize& size);

class ScratchBlocks {
 public:
  // `verb` becomes part of the name of the blocks' model, "larderctl-VERB".
  ScratchBlocks(const std::string& verb, const ScratchSize& size, Shell& shell, RpcStub& cache);

  // Connects, attaches, registers the content, and computes the digests of the blocks.
  [[nodiscard]] absl::Status Begin();

  // How long a batch of blocks took, and what became of them.
  struct Batch {
    uint64_t blocks = 0;  // that the daemon stored (Put) or returned (Get)
    double seconds = 0;
    uint64_t wrong = 0;  // of them, those that Get found to have wrong bytes
  };
  // Puts all blocks, and appends an entry to `batches` for each Session::Put that succeeds.  `what`
  // is the label of the progress bar.  Returns Cancelled if a signal stopped it, or the error of
  // Session::Put.
  [[nodiscard]] absl::Status Put(const std::string& what, std::vector<Batch>* batches);
  // Gets all blocks, checks one layer of each, and appends an entry to `batches` for each
  // Session::Get that succeeds.  `what` is the label of the progress bar.  Returns Cancelled if a
  // signal stopped it, or the error of Session::Get.
  [[nodiscard]] absl::Status Get(const std::string& what, std::vector<Batch>* batches);
  // Ends the session and clears the blocks, for which the daemon has one minute.  The first signal
  // does not interrupt it.
  [[nodiscard]] absl::Status Clear();

  [[nodiscard]] const ContentSpec& content() const { return content_; }
  [[nodiscard]] std::vector<Digest> digests() const;
  [[nodiscard]] std::string write_mode() const { return ToString(session_->write_mode()); }

 private:
  struct Block {
    Digest digest, parent;
    std::vector<uint32_t> tokens;
  };
  // Returns the bytes of a layer, which are derived from the block's digest and the layer's number.
  [[nodiscard]] std::vector<std::byte> LayerOf(const Block& block, uint32_t layer) const;
  [[nodiscard]] absl::Status CheckInterrupt() const;

  const std::string verb_;
  const ScratchSize& size_;
  Shell& shell_;
  RpcStub& cache_;
  ContentSpec content_;
  VariantSpec variant_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Session> session_;
  VariantHandle handle_;
  std::vector<Block> blocks_;
};

// The sum over all batches.
[[nodiscard]] ScratchBlocks::Batch Sum(const std::vector<ScratchBlocks::Batch>& batches);

}  // namespace larder::cli
