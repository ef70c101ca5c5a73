#include "server/instances/registration_store.h"

#include <pthread.h>

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/frames/session_codec.h"
#include "proto/frames/session_frames.h"
#include "storage/clock.h"

namespace larder {
namespace {

constexpr std::string_view kPrefix = "registration/";

// A registration is stored as the Register message of a session.  Nothing answers this message, so
// its id is free to hold the owner: kOfUidZero plus the uid, or kNobodys if no uid is known.
constexpr uint64_t kNobodys = 1;
constexpr uint64_t kOfUidZero = 2;

std::string Encode(std::span<const ContentSpec> contents, std::span<const VariantSpec> variants,
                   std::optional<uid_t> owner) {
  wire::Up up;
  wire::Register& registration = up.registers.emplace_back();
  registration.id = owner ? kOfUidZero + *owner : kNobodys;
  registration.contents.assign(contents.begin(), contents.end());
  registration.variants.assign(variants.begin(), variants.end());
  std::string frame;
  SessionCodec().Append(up, &frame);
  return frame.substr(kSessionFrameHeaderBytes);
}

}  // namespace

RegistrationStore::RegistrationStore(DiskTier& tier, InstanceTable& instances, std::string tenant,
                                     Counters& counters, Warn warn)
    : tier_(tier),
      instances_(instances),
      tenant_(std::move(tenant)),
      counters_(counters),
      warn_(std::move(warn)),
      thread_([this] { Run(); }) {}

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
    const std::string engine_id = key.substr(kPrefix.size());
    if (!instances_.Register(engine_id, known.contents, known.variants).ok()) return;
    ++loaded;
    if (known.id >= kOfUidZero)
      instances_.ExpectOwner(engine_id, static_cast<uid_t>(known.id - kOfUidZero));
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
  for (bool last = false; !last;) {
    absl::btree_set<std::string> batch;
    {
      MutexLock lock(mu_);
      while (!stop_ && waiting_.empty()) wake_.Wait(mu_);
      while (!stop_ && breaker_.open(SteadyNow())) wake_.WaitUntil(mu_, breaker_.until());
      last = stop_;
      batch.swap(waiting_);
    }
    for (const std::string& engine_id : batch) Write(engine_id);
  }
}

void RegistrationStore::Write(const std::string& engine_id) {
  const wire::InstanceInfo now = instances_.Find(engine_id);
  const std::string value = now.variants.empty()
                                ? std::string()
                                : Encode(now.contents, now.variants, instances_.OwnerOf(engine_id));
  const absl::Status status = tier_.PutFact(std::string(kPrefix) + engine_id, value);
  if (status.ok()) {
    failing_ = false;
    if (value.empty()) TryRefused();
    return breaker_.Succeeded();
  }
  ++counters_.registrations_failed;
  // The disk works but has no space left for registrations, so only this registration waits.
  if (absl::IsResourceExhausted(status)) return Refuse(engine_id, status);
  breaker_.Failed(SteadyNow());
  if (!std::exchange(failing_, true) && warn_) {
    warn_(absl::StrCat(
        "the registration of engine '", engine_id,
        "' could not be written to disk and will be retried: ", std::string(status.message())));
  }
  Save(engine_id);
}

void RegistrationStore::Refuse(const std::string& engine_id, const absl::Status& why) {
  if (refused_.empty() && warn_) {
    warn_(absl::StrCat("the registration of engine '", engine_id,
                       "' was not written to disk, so after a restart Lookup will not answer for "
                       "this engine until it attaches again: ",
                       std::string(why.message())));
  }
  refused_.insert(engine_id);
}

void RegistrationStore::TryRefused() {
  if (refused_.empty()) return;
  MutexLock lock(mu_);
  waiting_.insert(refused_.begin(), refused_.end());
  refused_.clear();
}

}  // namespace larder
