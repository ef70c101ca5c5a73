#include "server/registration_store.h"

#include <pthread.h>

#include <utility>
#include <vector>

#include "client/wire/session_codec.h"
#include "client/wire/session_frames.h"

namespace larder {
namespace {

constexpr std::string_view kPrefix = "registration/";

std::string Encode(std::span<const ContentSpec> contents, std::span<const VariantSpec> variants) {
  wire::Up up;
  wire::Register& registration = up.registers.emplace_back();
  registration.id = 1;  // any: none has no answer
  registration.contents.assign(contents.begin(), contents.end());
  registration.variants.assign(variants.begin(), variants.end());
  std::string frame;
  SessionCodec().Append(up, &frame);
  return frame.substr(kSessionFrameHeaderBytes);
}

}  // namespace

RegistrationStore::RegistrationStore(DiskTier& tier, std::string tenant)
    : tier_(tier), tenant_(std::move(tenant)), thread_([this] { Run(); }) {}

RegistrationStore::~RegistrationStore() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    wake_.NotifyOne();
  }
  thread_.join();
}

size_t RegistrationStore::Load(InstanceTable& instances) {
  size_t loaded = 0;
  SessionCodec codec;
  tier_.ForEachFact([&](const std::string& key, const std::string& value) {
    if (!key.starts_with(kPrefix)) return;
    wire::Up up;
    if (!codec.Parse(std::as_bytes(std::span(value)), &up).ok() || up.registers.size() != 1) return;
    wire::Register& known = up.registers[0];
    for (ContentSpec& content : known.contents) content.tenant = tenant_;  // not in the message
    loaded += instances.Register(key.substr(kPrefix.size()), known.contents, known.variants).ok();
  });
  return loaded;
}

void RegistrationStore::Save(const std::string& engine_id, std::span<const ContentSpec> contents,
                             std::span<const VariantSpec> variants) {
  Queue(engine_id, Encode(contents, variants));
}

void RegistrationStore::Forget(const std::string& engine_id) { Queue(engine_id, ""); }

void RegistrationStore::Queue(const std::string& engine_id, std::string value) {
  MutexLock lock(mu_);
  waiting_[engine_id] = std::move(value);
  wake_.NotifyOne();
}

void RegistrationStore::Run() {
  pthread_setname_np(pthread_self(), "registrations");
  for (;;) {
    absl::btree_map<std::string, std::string> batch;
    {
      MutexLock lock(mu_);
      while (waiting_.empty() && !stop_) wake_.Wait(mu_);
      if (waiting_.empty()) return;
      batch.swap(waiting_);
    }
    // A failure costs this engine its place in Lookup after the next restart, until it attaches.
    for (const auto& [engine_id, value] : batch)
      (void)tier_.PutFact(std::string(kPrefix) + engine_id, value);
  }
}

}  // namespace larder
