// Attacks with the messages of a session: damage reports, holds, leases, reports of device memory,
// staging segments.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/convert/convert.h"
#include "tests/e2e/attacks/attacker_tools.h"

namespace larder::e2e {
namespace {

constexpr uint32_t kDeadlineMaxMs = 600'000;

// A sideband and a session on it, registered with the content and variant of a victim.  An attack
// may have several.
struct Seat {
  std::unique_ptr<SidebandClient> sideband;
  std::unique_ptr<RawSession> session;
};
Seat SitDown(Attack& attack, const BlockMaker& maker, const std::string& engine_id = "attacker") {
  for (;;) {
    Seat seat{.sideband = Handshake(attack), .session = nullptr};
    if (seat.sideband != nullptr) seat.session = AttachBySocket(attack, *seat.sideband, engine_id);
    if (seat.session != nullptr && RegisterOf(attack, *seat.session, maker)) return seat;
    Pause(100);
  }
}
// Sends the message up to `count` times or until the session ends, while another thread reads the
// answers.
void Pour(Attack& attack, RawSession& session, const v1::Up& up, int count) {
  std::thread reader([&session] {
    while (session.Receive()) {
    }
  });
  for (int i = 0; i < count && session.Send(up); ++i) attack.tally.Done();
  reader.join();
  attack.tally.Refused(session.End().error_message());
}

// Four sessions at once send messages of 64 damage reports, each of which names the same key 4,096
// times.
void DamageReports(Attack& attack) {
  const BlockMaker maker = MakerOf("mapped");
  v1::Up up;
  std::string digests;
  for (int i = 0; i < 4'096; ++i) digests += Packed(maker.Block(0).digest);
  for (int i = 0; i < 64; ++i) up.add_damaged()->set_digests(digests);
  std::atomic<int> left{4'000};
  OnThreads(4, [&](int) {
    if (--left < 0) return Pause(1'000);
    const Seat seat = SitDown(attack, maker);
    Pour(attack, *seat.session, up, 1'000'000);
    Pause(100);
  });
}

v1::Up AcquireOf(const std::string& digests, v1::AcquireWhat what, uint32_t deadline_ms) {
  v1::Up up;
  v1::Acquire* acquire = up.add_acquires();
  acquire->set_id(7);
  acquire->set_digests(digests);
  acquire->set_what(what);
  acquire->set_deadline_ms(deadline_ms);
  return up;
}

// Acquires one block 4,096 times in each message of many sessions, which together hold it more than
// 65,536 times.  It acquires promises, which a process that may not map the pool gets without
// staging memory.
void Holds(Attack& attack) {
  const BlockMaker maker = MakerOf("mapped");
  std::string digests;
  for (int i = 0; i < 4'096; ++i) digests += Packed(maker.Block(0).digest);
  const v1::Up up = AcquireOf(digests, v1::ACQUIRE_WHAT_PROMISE, kDeadlineMaxMs);
  const auto sideband = Handshake(attack);
  std::vector<std::unique_ptr<RawSession>> held;
  for (int i = 0; sideband != nullptr && i < 2'000 && held.size() < 160; ++i) {
    auto session = AttachBySocket(attack, *sideband, "attacker");
    if (session == nullptr || !RegisterOf(attack, *session, maker)) {
      Pause(50);
      continue;
    }
    for (int k = 0; k < 17; ++k) {
      const auto down = session->Ask(up);
      if (!down || down->grants_size() != 1 || down->grants(0).lease_id() == 0) {
        attack.tally.Refused("no lease");
        break;
      }
      for (const int status : down->grants(0).status())
        if (status == v1::BLOCK_STATUS_OK) attack.tally.Done();
    }
    held.push_back(std::move(session));
  }
  for (;;) Pause(1'000);
}

// Fills the pool with its own blocks and leases them for a second, repeatedly.  It does not
// acknowledge revocations, and lives on.
void RevokedLeases(Attack& attack) {
  constexpr uint32_t kLayer = 512 << 10;
  constexpr uint32_t kBatch = 8;
  BlockMaker maker = MakerOf("attacker");
  std::vector<Seat> seats;
  for (int i = 0; i < 4; ++i) seats.push_back(SitDown(attack, maker));
  uint64_t id = 1;
  for (uint32_t number = 0; number < 4'000; number += kBatch) {
    StoreOwn(attack, maker, number, number + kBatch, kLayer);
    std::string digests;
    for (uint32_t i = 0; i < kBatch; ++i) digests += Packed(maker.Block(number + i).digest);
    v1::Up up = AcquireOf(digests, v1::ACQUIRE_WHAT_PROMISE, /*deadline_ms=*/1'000);
    up.mutable_acquires(0)->set_id(++id);
    Seat& seat = seats[number / kBatch % seats.size()];
    if (!seat.session->Send(up)) {
      attack.tally.Refused(seat.session->End().error_message());
      seat = SitDown(attack, maker);
    }
  }
}

// Takes a million leases on one block.
void Promises(Attack& attack) {
  const BlockMaker maker = MakerOf("mapped");
  for (int turn = 0; turn < 20; ++turn) {
    const Seat seat = SitDown(attack, maker);
    std::thread reader([&seat] {
      while (seat.session->Receive()) {
      }
    });
    uint64_t id = 1;
    for (int batch = 0; batch < 20'000; ++batch) {
      v1::Up up;
      for (int i = 0; i < 64; ++i) {
        v1::Acquire* acquire = up.add_acquires();
        acquire->set_id(++id);
        acquire->set_digests(Packed(maker.Block(0).digest));
        acquire->set_what(v1::ACQUIRE_WHAT_PROMISE);
        acquire->set_deadline_ms(kDeadlineMaxMs);
      }
      if (!seat.session->Send(up)) break;
      attack.tally.Done(64);
    }
    reader.join();
    attack.tally.Refused(seat.session->End().error_message());
  }
}

// Attaches as many sessions as the daemon accepts from one process.
void Sessions(Attack& attack) {
  std::vector<std::unique_ptr<RawSession>> held;
  auto sideband = Handshake(attack);
  for (int i = 0; held.size() < 1'100; ++i) {
    auto session = sideband != nullptr && i % 2 == 0 ? AttachBySocket(attack, *sideband, "attacker")
                                                     : AttachByGrpc(attack, "attacker");
    if (session == nullptr) {
      Pause(50);
      if (sideband == nullptr) sideband = Handshake(attack);
      continue;
    }
    attack.tally.Done();
    held.push_back(std::move(session));
  }
  for (;;) Pause(1'000);
}

// Reports, under a victim's engine id, a million blocks in device memory, the victim's hot blocks
// among them.
void DeviceReports(Attack& attack) {
  const BlockMaker maker = MakerOf("mapped");
  for (int turn = 0; turn < 100; ++turn) {
    const Seat seat = SitDown(attack, maker, EngineOf("mapped"));
    v1::Up up;
    up.add_device_blocks()->set_stored(HotDigests(maker, kHotBlocks));
    bool goes_on = seat.session->Send(up);
    for (uint32_t message = 0; message < 256 && goes_on; ++message) {
      std::string stored(4'096 * 16, '\0');
      for (size_t at = 0; at < stored.size(); at += 16) {
        const uint64_t words[2] = {message * 4'096 + at / 16, 0x5EED};
        std::memcpy(stored.data() + at, words, sizeof words);
      }
      up.Clear();
      up.add_device_blocks()->set_stored(stored);
      goes_on = seat.session->Send(up);
      attack.tally.Done();
    }
    while (seat.session->Receive()) {
    }
    attack.tally.Refused(seat.session->End().error_message());
    Pause(100);
  }
}

// Returns a segment without pages.  They are charged to the process that reads them first.
FileDescriptor SparseMemory(uint64_t bytes) {
  FileDescriptor fd(memfd_create("attacker", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
    return {};
  return fd;
}

// Has the daemon make a segment, or hands in a sparse one, as the library once did, and returns its
// id.  Each try has its own handshake, because a daemon may close a connection that sends an
// unknown packet.
std::optional<uint32_t> StagingOf(Attack& attack, std::vector<std::unique_ptr<RawSideband>>& held,
                                  uint64_t bytes) {
  constexpr uint16_t kHandIn = 9;  // FrameType::kStaging
  constexpr uint16_t kMake = 26;   // FrameType::kMakeStaging, of daemons that make segments
  const FileDescriptor memory = SparseMemory(bytes);
  for (const uint16_t type : {kMake, kHandIn}) {
    RawSideband& sideband = *held.emplace_back(std::make_unique<RawSideband>(attack));
    const std::string packet = RawSideband::Packet(type, bytes);
    const auto answer =
        sideband.Ask(std::as_bytes(std::span(packet)),
                     {.descriptor = type == kHandIn ? memory.get() : -1, .credentials = false});
    uint32_t id = 0;
    if (!answer || answer->size < kFrameHeaderBytes + sizeof id) continue;
    std::memcpy(&id, answer->data.data() + kFrameHeaderBytes, sizeof id);
    return id;
  }
  return std::nullopt;
}

// Has the daemon read all of a sparse segment of 64 MiB block by block, and then another segment.
void Staging(Attack& attack) {
  constexpr uint64_t kSegment = 64 << 20;
  constexpr uint32_t kLayer = 512 << 10;
  const BlockMaker maker = MakerOf("attacker");
  std::vector<std::unique_ptr<RawSideband>> sidebands;
  for (uint32_t turn = 0; turn < 16; ++turn) {
    const Seat seat = SitDown(attack, maker);
    const auto staging = StagingOf(attack, sidebands, kSegment);
    if (!staging) {
      Pause(100);
      continue;
    }
    for (uint32_t i = 0; i < kSegment / (2 * kLayer); ++i) {
      v1::Up up;
      up.add_reserves()->set_id(2 * i + 10);
      up.mutable_reserves(0)->add_bytes(UniformTable(2, kLayer).PayloadBytes().value());
      const auto reserved = seat.session->Ask(up);
      if (!reserved) break;
      if (reserved->reserved_size() != 1 || reserved->reserved(0).status() != v1::BLOCK_STATUS_OK) {
        attack.tally.Refused("reserve");
        Pause(10);
        continue;
      }
      const TestBlock block = maker.Block(turn * 1'000 + i);
      up.Clear();
      v1::Publish* publish = up.add_publishes();
      publish->set_id(2 * i + 11);
      publish->set_reservation_id(reserved->reserved(0).reservation_id());
      v1::PublishBlock* b = publish->add_blocks();
      b->set_digest(Packed(block.digest));
      b->set_parent(Packed(block.parent));
      b->mutable_tokens()->Add(block.tokens.begin(), block.tokens.end());
      wire::Encode(UniformTable(2, kLayer), b->mutable_segments());
      b->set_staging_id(*staging);
      b->set_staging_offset(uint64_t{i} * 2 * kLayer);
      if (!seat.session->Ask(up)) break;
      attack.tally.Done();
    }
  }
  for (;;) Pause(1'000);
}

// Takes leases and reservations with the longest deadline that a message can contain.
void Deadlines(Attack& attack) {
  const BlockMaker maker = MakerOf("mapped");
  uint64_t id = 10;
  for (int turn = 0; turn < 100; ++turn) {
    const Seat seat = SitDown(attack, maker);
    for (int i = 0; i < 1'000; ++i) {
      v1::Up up = AcquireOf(HotDigests(maker, kHotBlocks), v1::ACQUIRE_WHAT_PROMISE, UINT32_MAX);
      up.mutable_acquires(0)->set_id(++id);
      up.add_reserves()->set_id(++id);
      up.mutable_reserves(0)->add_bytes(1 << 20);
      up.mutable_reserves(0)->set_deadline_ms(UINT32_MAX);
      const auto down = seat.session->Ask(up);
      if (!down) break;
      const bool leased = down->grants_size() == 1 && down->grants(0).lease_id() != 0;
      const bool reserved = down->reserved_size() == 1 && down->reserved(0).reservation_id() != 0;
      if (leased || reserved) attack.tally.Done();
      if (!leased) attack.tally.Refused("no lease");
      if (!reserved) attack.tally.Refused("no reservation");
      Pause(5);
    }
    attack.tally.Refused(seat.session->End().error_message());
  }
}

}  // namespace

std::vector<NamedAttack> SessionAttacks() {
  return {{"damage_reports", DamageReports},
          {"holds", Holds},
          {"revoked_leases", RevokedLeases},
          {"promises", Promises},
          {"sessions", Sessions},
          {"device_reports", DeviceReports},
          {"staging", Staging},
          {"deadlines", Deadlines}};
}

}  // namespace larder::e2e
