// Attacks with names: callers without a sideband register engine ids, contents and variants under
// which nothing is ever stored, as many and as long as a message may contain.
#include "proto/convert/convert.h"
#include "tests/e2e/attacks/attacker_tools.h"

namespace larder::e2e {
namespace {

constexpr uint32_t kVariantsMax = 1'024;
constexpr uint32_t kContentsMax = 64;

std::string LongName(const std::string& what, uint32_t number) {
  std::string name = what + "-" + std::to_string(number);
  name.resize(256, 'x');
  return name;
}

// Returns a registration of so many names, numbered from `first`, so that other numbers give other
// names.
v1::Up RegisterMany(uint32_t first, uint32_t contents, uint32_t variants) {
  const BlockMaker maker = MakerOf("attacker");
  v1::Up up;
  v1::Register* request = up.add_registers();
  request->set_id(1);
  for (uint32_t i = 0; i < contents; ++i) {
    v1::Content* content = request->add_contents();
    wire::Encode(maker.content, content);
    content->set_revision(LongName("revision", first + i));
    content->set_lora(LongName("lora", first + i));
  }
  for (uint32_t i = 0; i < variants; ++i) {
    v1::Variant* variant = request->add_variants();
    wire::Encode(maker.variant, variant);
    variant->set_layout(LongName("layout", first + i).substr(0, 128));
    variant->set_group("g" + std::to_string(first + i));
  }
  return up;
}

// Registers in a new session and returns it, or null if the daemon refuses.
std::unique_ptr<RawSession> RegisterAs(Attack& attack, const std::string& engine_id,
                                       const v1::Up& up) {
  auto session = AttachByGrpc(attack, engine_id);
  if (session == nullptr) return nullptr;
  const auto down = session->Ask(up);
  if (!down || down->registered_size() != 1) {
    attack.tally.Refused("the session ended during the registration");
    return nullptr;
  }
  if (down->registered(0).status() != v1::BLOCK_STATUS_OK) {
    attack.tally.Refused(down->registered(0).message());
    return nullptr;
  }
  attack.tally.Done();
  return session;
}

// Registers as much as one registration may contain, each time as another engine, which leaves at
// once.
void Registrations(Attack& attack) {
  for (uint32_t i = 0; i < 20'000; ++i) {
    const auto session = RegisterAs(attack, LongName("engine", i),
                                    RegisterMany(i * kVariantsMax, kContentsMax, kVariantsMax));
    if (session == nullptr) {
      Pause(20);
    } else {
      session->Bye();
    }
  }
}

// Registers more variants than the daemon can number, in up to 100 sessions that stay.
void Variants(Attack& attack) {
  std::vector<std::unique_ptr<RawSession>> held;
  for (uint32_t i = 0; i < 2'000; ++i) {
    auto session = RegisterAs(attack, "attacker-" + std::to_string(i % 100),
                              RegisterMany(i * kVariantsMax, 1, kVariantsMax));
    if (session == nullptr) {
      Pause(20);
    } else if (held.size() < 100) {
      held.push_back(std::move(session));
    }
  }
}

// Attaches engines that stay, each with as many contents as it may have.
void Contents(Attack& attack) {
  std::vector<std::unique_ptr<RawSession>> held;
  for (uint32_t i = 0; i < 20'000; ++i) {
    auto session = RegisterAs(attack, "attacker-" + std::to_string(i),
                              RegisterMany(i * kContentsMax, kContentsMax, 1));
    if (session == nullptr) {
      Pause(20);
    } else if (held.size() < 400) {
      held.push_back(std::move(session));
    }
  }
}

// Attaches sessions under the engine ids of the victims, which would thereby need a group that they
// never store, and fills those engines with contents.
void EngineIds(Attack& attack) {
  std::vector<std::unique_ptr<RawSession>> held;
  for (uint32_t i = 0; i < 2'000; ++i) {
    auto session = RegisterAs(attack, EngineOf(i % 2 == 0 ? "mapped" : "staged"),
                              RegisterMany(i * kContentsMax, kContentsMax - 1, 1));
    if (session != nullptr && held.size() < 100) held.push_back(std::move(session));
    Pause(20);
  }
}

}  // namespace

std::vector<NamedAttack> NameAttacks() {
  return {{"registrations", Registrations},
          {"variants", Variants},
          {"contents", Contents},
          {"engine_ids", EngineIds}};
}

}  // namespace larder::e2e
