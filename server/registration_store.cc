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

RegistrationStore::RegistrationStore(DiskTier& tier, InstanceTable& instances, std::string tenant)
    : tier_(tier), instances_(instances), tenant_(std::move(tenant)), thread_([this] { Run(); }) {}

RegistrationStore::~RegistrationStore() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    wake_.NotifyOne();
  }
  thread_.join();
}

size_t RegistrationStore::Load() {
  size_t loaded = 0;
  SessionCodec codec;
  tier_.ForEachFact([&](const std::string& key, const std::string& value) {
    if (!key.starts_with(kPrefix)) return;
    wire::Up up;
    if (!codec.Parse(std::as_bytes(std::span(value)), &up).ok() || up.registers.size() != 1) return;
    wire::Register& known = up.registers[0];
    for (ContentSpec& content : known.contents) content.tenant = tenant_;  // not in the message
    loaded += instances_.Register(key.substr(kPrefix.size()), known.contents, known.variants).ok();
  });
  return loaded;
}

void RegistrationStore::Save(const std::string& engine_id) {
  MutexLock lock(mu_);
  waiting_.insert(engine_id);
  wake_.NotifyOne();
}

void RegistrationStore::Run() {
  pthread_setname_np(pthread_self(), "registrations");
  for (;;) {
    absl::btree_set<std::string> batch;
    {
      MutexLock lock(mu_);
      while (waiting_.empty() && !stop_) wake_.Wait(mu_);
      if (waiting_.empty()) return;
      batch.swap(waiting_);
    }
    for (const std::string& engine_id : batch) {
      const wire::InstanceInfo now = instances_.Find(engine_id);
      const std::string value =
          now.variants.empty() ? std::string() : Encode(now.contents, now.variants);
      // A failure costs this engine its place in Lookup after a restart, until it attaches again.
      (void)tier_.PutFact(std::string(kPrefix) + engine_id, value);
    }
  }
}

}  // namespace larder
