#include "server/grpc/incoming_messages.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "server/grpc/guarded_calls.h"
#include "server/grpc/incoming_frames.h"
#include "storage/mutex.h"

namespace larder {

struct IncomingMessages::Table {
  struct Process {
    uint64_t held = 0;
    absl::flat_hash_set<Connection*> connections;
  };
  struct User {
    uint64_t held = 0;
    absl::flat_hash_map<pid_t, Process> processes;  // 0: all whose pid the daemon does not see
  };
  // The arguments of OnEnded, which is called without the locks of this file.
  struct Ended {
    std::string what, why;
  };

  Table(ByteCount most, OnEnded on) : limit(most), on_ended(std::move(on)) {}
  void Add(Connection& connection) LARDER_EXCLUDES(mu);
  void Remove(Connection& connection) LARDER_EXCLUDES(mu);
  // Records what the connection holds, and ends connections until the total is within the limit.
  void Update(Connection& connection, uint64_t held, std::vector<Ended>* ended) LARDER_EXCLUDES(mu);
  void EndForHeaders(Connection& connection, std::vector<Ended>* ended) LARDER_EXCLUDES(mu);
  void Tell(const std::vector<Ended>& ended) const {
    if (!on_ended) return;
    for (const Ended& one : ended) on_ended(one.what, one.why);
  }
  // REQUIRES: a connection holds something.
  [[nodiscard]] Ended EndOneThatHoldsMost() LARDER_REQUIRES(mu);
  [[nodiscard]] Ended End(Connection& connection, const std::string& why) LARDER_REQUIRES(mu);
  void Hold(Connection& connection, uint64_t held) LARDER_REQUIRES(mu);

  const ByteCount limit;
  const OnEnded on_ended;
  std::atomic<uint64_t> total{0};  // written under mu
  mutable Mutex mu;
  bool gone LARDER_GUARDED_BY(mu) = false;  // the IncomingMessages is destroyed
  absl::flat_hash_map<uid_t, User> users LARDER_GUARDED_BY(mu);  // those that have connections
};

class IncomingMessages::Connection final : public SocketWatch {
 public:
  Connection(std::shared_ptr<Table> table, int socket, const SocketPeer& peer,
             std::atomic<uint64_t>& ended)
      : table_(std::move(table)), socket_(socket), peer_(peer), ended_(ended) {
    table_->Add(*this);
  }
  ~Connection() override { table_->Remove(*this); }

  bool OnReceived(std::span<const std::byte> bytes, size_t capacity) override {
    std::vector<Table::Ended> ended;
    {
      MutexLock lock(mu_);
      if (!frames_.OnReceived(bytes, capacity)) table_->EndForHeaders(*this, &ended);
      CountInTable(&ended);
    }
    table_->Tell(ended);
    return !over_;
  }
  void OnSent(std::span<const std::byte> bytes) override {
    std::vector<Table::Ended> ended;
    {
      MutexLock lock(mu_);
      frames_.OnSent(bytes);
      CountInTable(&ended);
    }
    table_->Tell(ended);
  }

 private:
  friend struct IncomingMessages::Table;
  // All connections share the table's lock, so changes below kUntoldBytes are not recorded in the
  // table, except a change to 0.
  void CountInTable(std::vector<Table::Ended>* ended) LARDER_REQUIRES(mu_) {
    const uint64_t held = frames_.held();
    const uint64_t change = std::max(held, counted_) - std::min(held, counted_);
    if (change < kUntoldBytes && (held != 0 || counted_ == 0)) return;
    counted_ = held;
    table_->Update(*this, held, ended);
  }

  const std::shared_ptr<Table> table_;
  const int socket_;
  const SocketPeer peer_;
  std::atomic<uint64_t>& ended_;

  Mutex mu_;  // acquired before the table's mutex
  IncomingFrames frames_ LARDER_GUARDED_BY(mu_);
  uint64_t counted_ LARDER_GUARDED_BY(mu_) = 0;  // what was last recorded in the table

  // held_ and over_ are written under the table's mutex.
  uint64_t held_ = 0;              // what the table counts for this connection
  std::atomic<bool> over_{false};  // it has been ended
};

void IncomingMessages::Table::Add(Connection& connection) {
  const SocketPeer& peer = connection.peer_;
  MutexLock lock(mu);
  users[peer.uid].processes[peer.pid].connections.insert(&connection);
}

void IncomingMessages::Table::Remove(Connection& connection) {
  const SocketPeer& peer = connection.peer_;
  MutexLock lock(mu);
  Hold(connection, 0);
  User& user = users[peer.uid];
  Process& process = user.processes[peer.pid];
  process.connections.erase(&connection);
  if (process.connections.empty()) user.processes.erase(peer.pid);
  if (user.processes.empty()) users.erase(peer.uid);
}

void IncomingMessages::Table::Update(Connection& connection, uint64_t held,
                                     std::vector<Ended>* ended) {
  MutexLock lock(mu);
  if (gone) return;
  if (!connection.over_) Hold(connection, held);
  while (total > limit.value()) ended->push_back(EndOneThatHoldsMost());
}

void IncomingMessages::Table::EndForHeaders(Connection& connection, std::vector<Ended>* ended) {
  MutexLock lock(mu);
  if (gone || connection.over_) return;
  ended->push_back(End(connection, absl::StrCat("the headers of a call are longer than ",
                                                IncomingFrames::kHeadersMax, " bytes")));
}

void IncomingMessages::Table::Hold(Connection& connection, uint64_t held) {
  const uint64_t more = held - connection.held_;  // may wrap; the sums then wrap back
  User& user = users[connection.peer_.uid];
  user.held += more;
  user.processes[connection.peer_.pid].held += more;
  total += more;
  connection.held_ = held;
}

IncomingMessages::Table::Ended IncomingMessages::Table::EndOneThatHoldsMost() {
  constexpr uint64_t kKiB = 1024;
  const auto held = [](const auto& each) { return each.second.held; };
  const User& user = std::ranges::max_element(users, {}, held)->second;
  const Process& process = std::ranges::max_element(user.processes, {}, held)->second;
  Connection& connection = **std::ranges::max_element(
      process.connections, {}, [](const Connection* each) { return each->held_; });
  return End(
      connection,
      absl::StrCat("its user has the most incomplete messages: ", user.held / kKiB,
                   " KiB, of which ", process.held / kKiB, " KiB in this process and ",
                   connection.held_ / kKiB, " KiB on this connection; the limit for all is ",
                   limit.value() / kKiB, " KiB; send less at once, or raise --memory-limit"));
}

IncomingMessages::Table::Ended IncomingMessages::Table::End(Connection& connection,
                                                            const std::string& why) {
  const SocketPeer& peer = connection.peer_;
  Hold(connection, 0);
  connection.over_ = true;
  ++connection.ended_;
  (void)shutdown(connection.socket_, SHUT_RDWR);  // wakes gRPC; fails if the peer has disconnected
  return {absl::StrCat("incoming_bytes uid ", peer.uid),
          absl::StrCat("a connection of uid ", peer.uid,
                       peer.pid == 0 ? "" : absl::StrCat(" pid ", peer.pid), " was ended: ", why)};
}

IncomingMessages::IncomingMessages(ByteCount limit, OnEnded on_ended)
    : table_(std::make_shared<Table>(limit, std::move(on_ended))) {}

IncomingMessages::~IncomingMessages() {
  MutexLock lock(table_->mu);
  table_->gone = true;
}

void IncomingMessages::Watch(int socket, const SocketPeer& peer, std::atomic<uint64_t>& ended) {
  if (!GuardsWork()) return;
  WatchSocket(socket, std::make_unique<Connection>(table_, socket, peer, ended));
}

uint64_t IncomingMessages::held() const { return table_->total; }

ByteCount IncomingMessages::limit() const { return table_->limit; }

}  // namespace larder
