// Names blocks and connects to a daemon that does not exist.  Exits with 0 if everything is as the
// headers promise.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/client.h"
#include "client/paged_restore.h"
#include "client/restorer.h"

namespace {

int failures = 0;

void Expect(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "consumer: expected %s\n", what);
  ++failures;
}

void NameBlocks() {
  const larder::ContentSpec content{.tenant = "default", .model = "SmolLM2-135M-Instruct"};
  larder::VariantSpec variant{
      .dtype = "f16", .layout = "consumer/1/any", .block_tokens = 32, .layers = 30};
  Expect(content.Validate().ok() && variant.Validate().ok(), "good specs to be good");
  const larder::Digest id = variant.Id();
  variant.rank = 1;
  variant.ranks = 2;
  Expect(id != variant.Id(), "another rank to be another variant");

  std::vector<uint32_t> tokens(40);
  for (uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = i;
  const std::vector<larder::Digest> chain = larder::Chain(content.Id(), tokens);
  Expect(chain.size() == 2, "40 tokens to be two whole steps");
  tokens[0] = 7;
  Expect(larder::Chain(content.Id(), tokens)[1] != chain[1],
         "a digest to depend on all tokens before it");
}

// The libraries of restores can be linked, of which a program without a daemon calls only a part.
void Restore(larder::Client& client) {
  const auto session = client.Attach({.engine_id = "consumer"});
  if (!session.ok()) return;
  larder::Restorer restorer(**session, {}, {.layers = 2, .channels = {{"pool", 1e9}}}, {});
  larder::PagedRestore engine({}, {}, {}, [](larder::TokenRange) { return absl::OkStatus(); });
  Expect(!restorer.Restore({}, engine).ok(), "a restore of nothing to be refused");
}

void PlanRestores() {
  const larder::Profile profile{.layers = 2, .channels = {{"pool", 1e9}}};
  Expect(!larder::FormatProfile(profile).empty(), "a profile to be written");
  larder::PagedRestore engine({}, {}, {}, [](larder::TokenRange) { return absl::OkStatus(); });
  Expect(!engine.Land(larder::ChannelId{1}, {}, {}).ok(), "no block to land without a cache");
}

void AskNobody(const std::string& socket_dir) {
  const auto client = larder::Client::Connect(
      {.socket_dir = socket_dir, .connect_deadline = std::chrono::milliseconds(200)});
  Expect(absl::IsUnavailable(client.status()), "Unavailable without a daemon");
  std::printf("consumer: %s\n", client.status().ToString().c_str());
  if (client.ok()) Restore(**client);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: consumer EMPTY_FOLDER\n");
    return 2;
  }
  NameBlocks();
  PlanRestores();
  AskNobody(argv[1]);
  return failures == 0 ? 0 : 1;
}
