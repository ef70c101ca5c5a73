#include "client/llama_cpp/model_revision.h"

#include <openssl/evp.h>

#include <array>
#include <fstream>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "storage/check.h"

namespace larder::llama {

std::string ShortRevision(const std::string& revision) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  LARDER_CHECK(EVP_Digest(revision.data(), revision.size(), digest.data(), nullptr, EVP_sha256(),
                          nullptr) == 1);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), 6});
}

absl::StatusOr<std::string> ModelRevision(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> hash(EVP_MD_CTX_new(),
                                                                     &EVP_MD_CTX_free);
  LARDER_CHECK(hash != nullptr && EVP_DigestInit_ex(hash.get(), EVP_sha256(), nullptr) == 1);
  std::vector<char> chunk(1 << 20);
  while (file) {
    file.read(chunk.data(), static_cast<std::streamsize>(chunk.size()));
    LARDER_CHECK(EVP_DigestUpdate(hash.get(), chunk.data(), static_cast<size_t>(file.gcount())) ==
                 1);
  }
  if (!file.eof()) return absl::DataLossError(absl::StrCat("cannot read ", path));
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned size = 0;
  LARDER_CHECK(EVP_DigestFinal_ex(hash.get(), digest.data(), &size) == 1);
  return absl::StrCat("sha256:",
                      absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), size}));
}

}  // namespace larder::llama
