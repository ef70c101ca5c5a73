#include <cstdlib>
#include <iostream>

#include "client/client.h"
using namespace larder;

template <class T>
T OrExit(absl::StatusOr<T> result) {
  if (result.ok()) return *std::move(result);
  std::cerr << result.status() << "\n";
  std::exit(1);
}

int main() {
  auto client = OrExit(Client::Connect({}));  // $LARDER_SOCKET_DIR, else /run/larder
  auto session = OrExit(client->Attach({.engine_id = "example"}));

  // What the tokens mean, and how this engine lays their KV down: 16 tokens a block, 2 layers.
  const ContentSpec contents[] = {{.model = "my-model", .revision = "1"}};
  const VariantSpec variants[] = {
      {.dtype = "f16", .layout = "my-engine/1/any", .block_tokens = 16, .layers = 2}};
  const auto variant = OrExit(session->Register(contents, variants))[0];

  const std::vector<uint32_t> tokens(16, 42);
  const Digest seed = session->Seed(contents[0]);
  const Digest digest = Chain(seed, tokens)[0];  // names these 16 tokens and all before them

  std::vector<std::byte> a(4096, std::byte{7}), b(4096, std::byte{8}), to_a(4096), to_b(4096);
  const std::span<const std::byte> from[] = {a, b};  // one segment per layer
  const std::span<std::byte> to[] = {to_a, to_b};
  const PutBlock put[] = {{.digest = digest, .parent = seed, .tokens = tokens, .segments = from}};
  const GetBlock get[] = {{.digest = digest, .segments = to}};

  const auto stored = OrExit(session->Put(variant, put));  // a status per block
  const auto loaded = OrExit(session->Get(variant, get));  // fills to_a and to_b, or says missing
  std::cout << "put " << ToString(stored[0]) << ", got " << ToString(loaded[0]) << "\n";
}
