#include "client/cli/verbs/block_options.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/frames/file_descriptor.h"
#include "storage/status_macros.h"
#include "storage/text.h"

namespace larder::cli {
namespace {

constexpr size_t kKeysAtOnce = 4096;
constexpr size_t kInputBytesMax = 256 << 20;

// Reads all of a file ("@FILE") or of standard input ("-"), at most 256 MiB.
absl::StatusOr<std::string> ReadInput(const std::string& from, Interrupt& interrupt) {
  FileDescriptor file;
  int fd = STDIN_FILENO;
  if (from != "-") {
    file = FileDescriptor(open(from.c_str() + 1, O_RDONLY | O_CLOEXEC));
    fd = file.get();
    if (!file) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", Printable(from.substr(1))));
    }
  }
  std::string text;
  char buffer[65'536];
  for (;;) {
    if (from == "-" && !interrupt.AwaitInput(fd)) return absl::CancelledError("interrupted");
    const ssize_t n = read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", Printable(from)));
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > kInputBytesMax)
      return absl::InvalidArgumentError(absl::StrCat(Printable(from), " has more than 256 MiB"));
  }
}

bool IsInput(const std::string& text) { return text == "-" || text.starts_with("@"); }

// The first word of each line is a key, unless it begins with "#" or is "KEY", the heading of a
// table.
absl::Status AppendKeys(const std::string& from, Interrupt& interrupt,
                        std::vector<std::string>* keys) {
  LARDER_ASSIGN_OR_RETURN(const std::string text, ReadInput(from, interrupt));
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty() || words[0].front() == '#' || words[0] == "KEY") continue;
    keys->emplace_back(words[0]);
  }
  return absl::OkStatus();
}

// "hex:00ff" gives two bytes, and a text without "hex:" is taken as it is.
absl::StatusOr<std::string> ParseBytesOption(const char* name, const std::string& text) {
  if (!text.starts_with("hex:")) return text;
  const std::string digits = text.substr(4);
  const bool hex = digits.size() % 2 == 0 && std::all_of(digits.begin(), digits.end(), [](char c) {
                     return absl::ascii_isxdigit(static_cast<unsigned char>(c));
                   });
  if (!hex)
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": pairs of hexadecimal digits must follow hex:"));
  return absl::HexStringToBytes(digits);
}

struct Key {
  std::optional<Digest> variant;
  Digest digest;
};

absl::StatusOr<Key> ParseKey(const std::string& text) {
  const size_t colon = text.find(':');
  Key key;
  absl::StatusOr<Digest> part;
  if (colon != std::string::npos) {
    part = ParseDigest(text.substr(0, colon));
    if (part.ok()) key.variant = *part;
  }
  if (colon == std::string::npos || part.ok())
    part = ParseDigest(colon == std::string::npos ? text : text.substr(colon + 1));
  if (!part.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", Printable(text),
        "\" is not a key: a key is VARIANT:DIGEST or DIGEST, of 32 hexadecimal digits each"));
  }
  key.digest = *part;
  return key;
}

}  // namespace

absl::StatusOr<Digest> ParseDigest(std::string_view text) {
  const bool hex =
      text.size() == 2 * kDigestBytes && std::all_of(text.begin(), text.end(), [](char c) {
        return absl::ascii_isxdigit(static_cast<unsigned char>(c));
      });
  if (!hex) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", Printable(text), "\" is not 32 hexadecimal digits"));
  }
  const std::string bytes = absl::HexStringToBytes(AbslView(text));
  Digest digest;
  std::memcpy(digest.bytes.data(), bytes.data(), kDigestBytes);
  return digest;
}

absl::StatusOr<std::vector<uint32_t>> ReadTokens(const std::string& text, Interrupt& interrupt) {
  absl::StatusOr<std::string> list = text;
  if (IsInput(text)) list = ReadInput(text, interrupt);
  LARDER_RETURN_IF_ERROR(list.status());
  std::vector<uint32_t> tokens;
  for (const absl::string_view word :
       absl::StrSplit(*list, absl::ByAnyChar(", \t\r\n[]"), absl::SkipEmpty())) {
    uint32_t token = 0;
    if (!absl::SimpleAtoi(word, &token)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", Printable({word.data(), word.size()}), "\" is not a token id"));
    }
    tokens.push_back(token);
  }
  if (tokens.empty()) return absl::InvalidArgumentError("the list has no token ids");
  if (tokens.size() > wire::kLookupTokensMax) {
    return absl::InvalidArgumentError(absl::StrCat(tokens.size(), " token ids are given, but only ",
                                                   wire::kLookupTokensMax, " are allowed"));
  }
  return tokens;
}

void ContentOptions::AddTo(VerbOptions& verb) {
  verb.AddText("--model", &model, "NAME", "Model that the blocks belong to.");
  verb.AddText("--revision", &revision, "NAME", "Revision of the model.");
  verb.AddText("--salt", &salt, "TEXT", "Salt of the content; hex:00ff for bytes.");
  verb.AddText("--lora", &lora, "NAME", "Adapter of the model.");
  verb.AddText("--multimodal", &multimodal, "TEXT",
               "Identity of the inputs that are not tokens; hex:00ff for bytes.");
}

absl::StatusOr<ContentSpec> ContentOptions::Content() const {
  if (model.empty())
    return absl::InvalidArgumentError("--model is missing: blocks are stored by model");
  ContentSpec content;
  content.model = model;
  content.revision = revision;
  content.lora = lora;
  for (const auto& [name, text, to] :
       {std::tuple{"--salt", &salt, &content.salt},
        std::tuple{"--multimodal", &multimodal, &content.multimodal}}) {
    LARDER_ASSIGN_OR_RETURN(*to, ParseBytesOption(name, *text));
  }
  return content;
}

bool ContentOptions::any() const {
  return !model.empty() || !revision.empty() || !salt.empty() || !lora.empty() ||
         !multimodal.empty();
}

Tier TierNamed(std::string_view word) {
  return word == "device" ? Tier::kDevice : word == "disk" ? Tier::kDisk : Tier::kHost;
}

TierSet TiersNamed(std::string_view word) { return word == "all" ? 0 : TierBit(TierNamed(word)); }

void BlockOptions::AddTo(VerbOptions& verb, Scopes scopes) {
  verb.AddWords("KEY", &keys_,
                "VARIANT:DIGEST or DIGEST, in hexadecimal digits, as watch prints them. A - reads "
                "keys from standard input, @FILE reads them from a file: the first word of each "
                "line.");
  verb.AddText("--tokens", &tokens_, "LIST",
               "The blocks of a prompt, by its token ids, which commas separate; @FILE and - "
               "read them as with KEY.");
  if (scopes == Scopes::kEveryScope) {
    verb.AddText("--prefix", &prefix_, "LIST", "Every block whose tokens begin with these.");
    verb.AddFlag("--content", &content_,
                 "Every block of the content that --model, --revision and so on name.");
    verb.AddFlag("--all", &all_, "Every block.");
    verb.AddText("--writer-uid", &writer_uid_, "UID",
                 "Every block that processes of this user stored; unknown stands for the blocks "
                 "whose writer is not known.");
    verb.AddText("--writer-engine", &writer_engine_, "ID",
                 "With --writer-uid, only the blocks that were stored under this engine id. A "
                 "block that has been on disk only since then does not name its engine, and is "
                 "left out.");
  }
  content_options_.AddTo(verb);
  verb.AddText("--engine", &engine_, "ID", "Only blocks of variants that this engine registered.");
  verb.AddTexts("--variant", &variants_, "VARIANT",
                "Only blocks of this variant, named by 32 digits; may be given several times.");
}

absl::StatusOr<wire::BlockSelection> BlockOptions::Variants() const {
  wire::BlockSelection selection;
  selection.engine_id = engine_;
  for (const std::string& text : variants_) {
    const absl::StatusOr<Digest> variant = ParseDigest(text);
    if (!variant.ok())
      return absl::InvalidArgumentError(absl::StrCat("--variant: ", variant.status().message()));
    selection.variants.push_back(*variant);
  }
  return selection;
}

absl::StatusOr<BlockWriter> BlockOptions::Writer() const {
  BlockWriter writer;
  if (content_options_.any()) {
    return absl::InvalidArgumentError(
        "--writer-uid names blocks of every model: leave out --model, --revision, --salt, --lora "
        "and --multimodal");
  }
  if (writer_uid_ != "unknown" &&
      (!absl::SimpleAtoi(writer_uid_, &writer.uid) || writer.uid == BlockWriter::kUnknownUid)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--writer-uid: \"", Printable(writer_uid_),
                     "\" is neither a uid, as id -u NAME prints it, nor unknown"));
  }
  if (!writer_engine_.empty()) writer.engine = EngineNumber(writer_engine_);
  return writer;
}

absl::StatusOr<std::vector<BlockOptions::Part>> BlockOptions::Parts(Interrupt& interrupt) const {
  const int ways = (keys_.empty() ? 0 : 1) + (tokens_.empty() ? 0 : 1) + (prefix_.empty() ? 0 : 1) +
                   (content_ ? 1 : 0) + (all_ ? 1 : 0) + (writer_uid_.empty() ? 0 : 1);
  if (!writer_engine_.empty() && writer_uid_.empty()) {
    return absl::InvalidArgumentError(
        "--writer-engine needs --writer-uid: blocks name an engine by a number, which engines of "
        "two users may share");
  }
  if (ways != 1) {
    return absl::InvalidArgumentError(
        ways == 0 ? "no blocks are named: give keys, --tokens, or another option that --help lists"
                  : "blocks are named in more than one way: give only one of keys, --tokens, "
                    "--prefix, --content, --all and --writer-uid");
  }
  if (!keys_.empty()) return PartsOfKeys(interrupt);
  LARDER_ASSIGN_OR_RETURN(wire::BlockSelection selection, Variants());
  Part part{.scope = wire::SelectionScope::kAll, .blocks = std::move(selection)};
  if (all_) return std::vector<Part>{std::move(part)};
  if (!writer_uid_.empty()) {
    LARDER_ASSIGN_OR_RETURN(const BlockWriter writer, Writer());
    part.scope = wire::SelectionScope::kWriter;
    part.blocks.writer = writer;
    return std::vector<Part>{std::move(part)};
  }
  LARDER_ASSIGN_OR_RETURN(part.blocks.content, content_options_.Content());
  part.scope = content_          ? wire::SelectionScope::kContent
               : tokens_.empty() ? wire::SelectionScope::kPrefix
                                 : wire::SelectionScope::kBlocks;
  if (!content_) {
    LARDER_ASSIGN_OR_RETURN(part.blocks.tokens,
                            ReadTokens(tokens_.empty() ? prefix_ : tokens_, interrupt));
  }
  return std::vector<Part>{std::move(part)};
}

absl::StatusOr<std::vector<BlockOptions::Part>> BlockOptions::PartsOfKeys(
    Interrupt& interrupt) const {
  LARDER_ASSIGN_OR_RETURN(const wire::BlockSelection common, Variants());
  std::vector<std::string> texts;
  for (const std::string& text : keys_) {
    if (!IsInput(text)) {
      texts.push_back(text);
    } else {
      LARDER_RETURN_IF_ERROR(AppendKeys(text, interrupt, &texts));
    }
  }
  if (texts.empty()) return absl::InvalidArgumentError("the input has no keys");
  std::vector<Key> keys;
  for (const std::string& text : texts) {
    LARDER_ASSIGN_OR_RETURN(const Key key, ParseKey(text));
    if (key.variant && (!variants_.empty() || !engine_.empty()))
      return absl::InvalidArgumentError(
          "keys of the form VARIANT:DIGEST cannot be combined with --variant or --engine");
    keys.push_back(key);
  }
  // Parts are in the order of their first keys.
  std::vector<Part> parts;
  std::vector<std::pair<std::optional<Digest>, size_t>> open;  // each variant and its latest part
  for (const Key& key : keys) {
    auto found = std::find_if(open.begin(), open.end(),
                              [&](const auto& entry) { return entry.first == key.variant; });
    if (found == open.end()) found = open.insert(open.end(), {key.variant, parts.size()});
    if (found->second == parts.size() ||
        parts[found->second].blocks.digests.size() == kKeysAtOnce) {
      found->second = parts.size();
      parts.push_back({.scope = wire::SelectionScope::kBlocks, .blocks = common});
      if (key.variant) parts.back().blocks.variants = {*key.variant};
    }
    parts[found->second].blocks.digests.push_back(key.digest);
  }
  return parts;
}

}  // namespace larder::cli
