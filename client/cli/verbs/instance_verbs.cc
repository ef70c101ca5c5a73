// larderctl instances, lookup: which engines there are, and what is stored of a prompt.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/shell/table.h"
#include "client/cli/verbs/block_options.h"
#include "client/cli/verbs/verbs.h"
#include "storage/status_macros.h"
#include "storage/text.h"

namespace larder::cli {
namespace {

std::string Bytes(ByteCount bytes) { return FormatBytes(static_cast<double>(bytes.value())); }

// Salt and multimodal are bytes, which need not be printable.
Json ToJson(const ContentSpec& content) {
  return {{"model", content.model},
          {"revision", content.revision},
          {"salt", Printable(content.salt)},
          {"lora", content.lora},
          {"multimodal", Printable(content.multimodal)}};
}

Json ToJson(const VariantSpec& variant) {
  return {{"id", variant.Id().Hex()},
          {"dtype", variant.dtype},
          {"layout", variant.layout},
          {"rank", variant.rank},
          {"ranks", variant.ranks},
          {"group", variant.group},
          {"block_tokens", variant.block_tokens},
          {"layers", variant.layers},
          {"first_layer", variant.first_layer}};
}

Json ToJson(const wire::EngineDevice& device) {
  return {{"kind", device.kind},     {"wish", device.wish},     {"name", device.name},
          {"driver", device.driver}, {"reason", device.reason}, {"limits", device.limits}};
}

Json ToJson(const wire::InstanceInfo& instance) {
  Json out = {{"engine_id", instance.engine_id},
              {"number", EngineNumber(instance.engine_id)},
              {"attached", instance.attached},
              {"blocks", instance.blocks},
              {"bytes", instance.bytes.value()}};
  Json& sessions = out["sessions"] = Json::array();
  for (const wire::InstanceSession& s : instance.sessions) {
    sessions.push_back({{"session", s.session.value},
                        {"role", ToString(s.role)},
                        {"rank", s.rank},
                        {"peer", s.peer},
                        {"write_mode", ToString(s.write_mode)},
                        {"age_s", s.age_s}});
    if (!s.device.kind.empty()) sessions.back()["device"] = ToJson(s.device);
  }
  Json& contents = out["contents"] = Json::array();
  for (const ContentSpec& content : instance.contents) contents.push_back(ToJson(content));
  Json& variants = out["variants"] = Json::array();
  for (const VariantSpec& variant : instance.variants) variants.push_back(ToJson(variant));
  return out;
}

// Joins what `say` returns for the sessions, each value once: "mapped", "staged+stream"; "-" if
// there is none.
template <class Say>
std::string OfSessions(const wire::InstanceInfo& instance, Say say) {
  std::vector<std::string> said;
  for (const wire::InstanceSession& session : instance.sessions) {
    std::string one = say(session);
    if (!one.empty() && std::find(said.begin(), said.end(), one) == said.end())
      said.push_back(std::move(one));
  }
  return said.empty() ? "-" : absl::StrJoin(said, "+");
}

std::string WriteModes(const wire::InstanceInfo& instance) {
  return OfSessions(instance, [](const wire::InstanceSession& session) {
    return std::string(ToString(session.write_mode));
  });
}

// An asterisk means that the engine gave a reason for its choice of device, which -o json has.
std::string Devices(const wire::InstanceInfo& instance) {
  return OfSessions(instance, [](const wire::InstanceSession& session) {
    return absl::StrCat(Printable(session.device.kind), session.device.reason.empty() ? "" : "*");
  });
}

ExitCode Instances(Shell& shell) {
  const absl::StatusOr<RpcStub*> cache = shell.Cache();
  if (!cache.ok()) return shell.Fail(cache.status());
  const absl::StatusOr<std::vector<wire::InstanceInfo>> found =
      (*cache)->ListInstances(shell.options().tenant, shell.Limits());
  if (!found.ok()) return shell.Fail(found.status());
  if (shell.json()) {
    Json all = Json::array();
    for (const wire::InstanceInfo& instance : *found) all.push_back(ToJson(instance));
    shell.PrintJson(all);
    return ExitCode::kOk;
  }
  Table table({{"ENGINE", Table::Kind::kMayBeCut},
               {"STATE"},
               {"SESSIONS", Table::Kind::kNumber},
               {"WRITES"},
               {"DEVICE", Table::Kind::kMayBeCut},
               {"BLOCKS", Table::Kind::kNumber},
               {"BYTES", Table::Kind::kNumber},
               {"MODEL", Table::Kind::kMayBeCut}});
  for (const wire::InstanceInfo& i : *found) {
    const std::string model =
        i.contents.empty() ? "-"
        : i.contents.size() == 1
            ? Printable(i.contents[0].model)
            : absl::StrCat(Printable(i.contents[0].model), " +", i.contents.size() - 1);
    table.Add({Printable(i.engine_id), i.attached ? "attached" : "detached",
               absl::StrCat(i.sessions.size()), WriteModes(i), Devices(i), FormatCount(i.blocks),
               Bytes(i.bytes), model});
  }
  shell.Print(table.Format(shell.width()));
  return ExitCode::kOk;
}

struct LookupOptions {
  ContentOptions content;
  std::string tokens, engine;
  std::vector<std::string> digests;
};

absl::StatusOr<wire::LookupQuery> QueryOf(const LookupOptions& options, Shell& shell) {
  wire::LookupQuery query;
  query.tenant = shell.options().tenant;
  query.engine_id = options.engine;
  LARDER_ASSIGN_OR_RETURN(query.content, options.content.Content());
  if (options.tokens.empty() == options.digests.empty())
    return absl::InvalidArgumentError("give either --tokens or the digests of the chain");
  for (const std::string& text : options.digests) {
    LARDER_ASSIGN_OR_RETURN(const Digest digest, ParseDigest(text));
    query.digests.push_back(digest);
  }
  if (options.tokens.empty()) return query;
  LARDER_ASSIGN_OR_RETURN(query.tokens, ReadTokens(options.tokens, shell.interrupt()));
  return query;
}

std::string RangesText(const std::vector<TokenRange>& ranges) {
  return absl::StrJoin(ranges, " ", [](std::string* out, const TokenRange& range) {
    absl::StrAppend(out, range.begin, "..", range.end);
  });
}

Json ToJson(const wire::LookupResult& result) {
  Json out = {{"boot_id", result.boot_id}};
  Json& instances = out["instances"] = Json::array();
  for (const wire::InstanceHit& hit : result.instances) {
    Json one = {{"engine_id", hit.engine_id}, {"attached", hit.attached}};
    Json& tiers = one["tiers"] = Json::array();
    for (const wire::TierHit& tier : hit.tiers) {
      Json ranges = Json::array();
      for (const TokenRange& range : tier.ranges) ranges.push_back({range.begin, range.end});
      tiers.push_back({{"tier", ToString(tier.tier)},
                       {"contiguous_tokens", tier.contiguous.value()},
                       {"ranges", std::move(ranges)},
                       {"bytes", tier.bytes.value()},
                       {"load_s", tier.load_s}});
    }
    instances.push_back(std::move(one));
  }
  return out;
}

ExitCode Lookup(const LookupOptions& options, Shell& shell) {
  const absl::StatusOr<wire::LookupQuery> query = QueryOf(options, shell);
  if (!query.ok()) return shell.Fail(query.status());
  const absl::StatusOr<RpcStub*> cache = shell.Cache();
  if (!cache.ok()) return shell.Fail(cache.status());
  const absl::StatusOr<wire::LookupResult> found = (*cache)->Lookup(*query, shell.Limits());
  if (!found.ok()) return shell.Fail(found.status());
  if (shell.json()) {
    shell.PrintJson(ToJson(*found));
  } else if (!found->instances.empty()) {
    Table table({{"ENGINE", Table::Kind::kMayBeCut},
                 {"STATE"},
                 {"TIER"},
                 {"TOKENS", Table::Kind::kNumber},
                 {"BYTES", Table::Kind::kNumber},
                 {"LOAD", Table::Kind::kNumber},
                 {"RANGES", Table::Kind::kMayBeCut}});
    for (const wire::InstanceHit& hit : found->instances) {
      for (const wire::TierHit& tier : hit.tiers) {
        table.Add({Printable(hit.engine_id), hit.attached ? "attached" : "detached",
                   ToString(tier.tier), FormatCount(tier.contiguous.value()), Bytes(tier.bytes),
                   FormatSeconds(tier.load_s), RangesText(tier.ranges)});
      }
    }
    shell.Print(table.Format(shell.width()));
  }
  if (!found->instances.empty()) return ExitCode::kOk;
  shell.Say("no block of this prompt is stored");
  shell.SayNext("larderctl instances lists models and engines");
  return ExitCode::kIncomplete;
}

}  // namespace

void AddInstances(CommandTree& tree) {
  tree.Add(
      {.name = "instances",
       .summary = "lists engines, attached or not, and what is stored of them",
       .about = "An engine that has gone stays listed as detached while blocks of it are stored. "
                "DEVICE is where its sessions have their paged caches; an asterisk means that they "
                "asked for another device. "
                "-o json also has the reason, and the sessions, contents and variants with their "
                "ids.",
       .examples = {{"instances", "One line per engine."},
                    {"instances -o json | jq '.[].variants[].id'", "Ids of variants."}}},
      [](VerbOptions&) -> RunVerb { return Instances; });
}

void AddLookup(CommandTree& tree) {
  tree.Add(
      {.name = "lookup",
       .summary = "shows what is stored of a prompt, by engine and tier",
       .about = "TOKENS counts the stored tokens from the first one up to the first gap; "
                "RANGES are all stored ranges; LOAD is a rough estimate of how long loading "
                "takes. Exits with 1 if no block of the prompt is stored.",
       .examples = {{"lookup --model my-model --tokens @prompt.ids", "By token ids."},
                    {"lookup --model my-model --tokens 1,2,3 -o json", "JSON, for a program."}}},
      [](VerbOptions& verb) -> RunVerb {
        const auto options = std::make_shared<LookupOptions>();
        verb.AddWords("DIGEST", &options->digests,
                      "The digest chain: one digest of 32 digits for every 16 tokens.");
        verb.AddText("--tokens", &options->tokens, "LIST",
                     "Token ids, which commas separate; - reads them from standard input, "
                     "@FILE from a file.");
        options->content.AddTo(verb);
        verb.AddText("--engine", &options->engine, "ID", "Only this engine.");
        return [options](Shell& shell) { return Lookup(*options, shell); };
      });
}

}  // namespace larder::cli
