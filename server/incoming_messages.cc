#include "server/incoming_messages.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "server/guarded_calls.h"
#include "server/incoming_frames.h"
#include "storage/mutex.h"

namespace larder {

struct IncomingMessages::Table {
  using Key = std::pair<uid_t, pid_t>;  // of a process; pid 0: all of the uid that are not seen
  struct Process {
    uint64_t held = 0;
    absl::flat_hash_set<Connection*> connections;
  };

  Table(ByteCount most, OnEnded on) : limit(most), on_ended(std::move(on)) {}
  void Add(Connection& connection) LARDER_EXCLUDES(mu);
  void Remove(Connection& connection) LARDER_EXCLUDES(mu);
  // False: the connection is to end.
  [[nodiscard]] bool Update(Connection& connection, uint64_t held) LARDER_EXCLUDES(mu);
  // REQUIRES: some connection holds something.
  [[nodiscard]] Connection& WhichHoldsMost() const LARDER_REQUIRES(mu);
  [[nodiscard]] std::string End(Connection& connection) LARDER_REQUIRES(mu);
  void Hold(Connection& connection, uint64_t held) LARDER_REQUIRES(mu);

  const ByteCount limit;
  const OnEnded on_ended;
  std::atomic<uint64_t> total{0};  // written under mu
  mutable Mutex mu;
  absl::flat_hash_map<Key, Process> processes LARDER_GUARDED_BY(mu);  // that have connections
};

class IncomingMessages::Connection final : public SocketWatch {
 public:
  Connection(std::shared_ptr<Table> table, int socket, const SocketPeer& peer,
             std::atomic<uint64_t>& ended)
      : table_(std::move(table)), socket_(socket), peer_(peer), ended_(ended) {
    table_->Add(*this);
  }
  ~Connection() override { table_->Remove(*this); }

  bool OnReceived(std::span<const std::byte> bytes) override {
    MutexLock lock(mu_);
    frames_.OnReceived(bytes);
    return Tell();
  }
  void OnSent(std::span<const std::byte> bytes) override {
    MutexLock lock(mu_);
    frames_.OnSent(bytes);
    (void)Tell();  // the next read hears whether it is to end
  }

 private:
  friend struct IncomingMessages::Table;
  // The table's lock is everybody's, so a change that is small does not go there.
  [[nodiscard]] bool Tell() LARDER_REQUIRES(mu_) {
    const uint64_t held = frames_.held();
    const uint64_t change = std::max(held, told_) - std::min(held, told_);
    const bool small = change < kUntoldBytes && (held != 0 || told_ == 0);
    if (small && !over_.load(std::memory_order_relaxed)) return true;
    told_ = held;
    return table_->Update(*this, told_);
  }

  const std::shared_ptr<Table> table_;
  const int socket_;
  const SocketPeer peer_;
  std::atomic<uint64_t>& ended_;

  Mutex mu_;  // before the table's
  IncomingFrames frames_ LARDER_GUARDED_BY(mu_);
  uint64_t told_ LARDER_GUARDED_BY(mu_) = 0;  // to the table

  uint64_t held_ = 0;              // of told_, what counts; guarded by the table's mutex
  std::atomic<bool> over_{false};  // it is ended; written under the table's mutex
};

void IncomingMessages::Table::Add(Connection& connection) {
  MutexLock lock(mu);
  processes[Key(connection.peer_.uid, connection.peer_.pid)].connections.insert(&connection);
}

void IncomingMessages::Table::Remove(Connection& connection) {
  MutexLock lock(mu);
  Hold(connection, 0);
  const auto process = processes.find(Key(connection.peer_.uid, connection.peer_.pid));
  process->second.connections.erase(&connection);
  if (process->second.connections.empty()) processes.erase(process);
}

bool IncomingMessages::Table::Update(Connection& connection, uint64_t held) {
  std::vector<std::pair<std::string, std::string>> ended;
  bool goes_on = false;
  {
    MutexLock lock(mu);
    if (!connection.over_) Hold(connection, held);
    while (total > limit.value()) {
      Connection& most = WhichHoldsMost();
      ended.emplace_back(absl::StrCat("incoming_bytes uid ", most.peer_.uid), End(most));
    }
    goes_on = !connection.over_;
  }
  if (on_ended) {
    for (const auto& [what, why] : ended) on_ended(what, why);
  }
  return goes_on;
}

void IncomingMessages::Table::Hold(Connection& connection, uint64_t held) {
  Process& process = processes[Key(connection.peer_.uid, connection.peer_.pid)];
  process.held += held - connection.held_;
  total += held - connection.held_;
  connection.held_ = held;
}

IncomingMessages::Connection& IncomingMessages::Table::WhichHoldsMost() const {
  const auto process =
      std::ranges::max_element(processes, {}, [](const auto& each) { return each.second.held; });
  return **std::ranges::max_element(process->second.connections, {},
                                    [](const Connection* each) { return each->held_; });
}

std::string IncomingMessages::Table::End(Connection& connection) {
  constexpr uint64_t kKiB = 1024;
  const SocketPeer& peer = connection.peer_;
  std::string why = absl::StrCat(
      "a connection of uid ", peer.uid, peer.pid == 0 ? "" : absl::StrCat(" pid ", peer.pid),
      " is ended: of messages that are not whole it holds ", connection.held_ / kKiB,
      " KiB, the most of all, and there is room for ", limit.value() / kKiB,
      " KiB; send less at once, or raise --memory-limit");
  Hold(connection, 0);
  connection.over_ = true;
  ++connection.ended_;
  (void)shutdown(connection.socket_, SHUT_RDWR);  // wakes gRPC; it fails where the peer has gone
  return why;
}

IncomingMessages::IncomingMessages(ByteCount limit, OnEnded on_ended)
    : table_(std::make_shared<Table>(limit, std::move(on_ended))) {}

IncomingMessages::~IncomingMessages() = default;

void IncomingMessages::Watch(int socket, const SocketPeer& peer, std::atomic<uint64_t>& ended) {
  if (!GuardsWork()) return;
  WatchSocket(socket, std::make_unique<Connection>(table_, socket, peer, ended));
}

uint64_t IncomingMessages::held() const { return table_->total; }

ByteCount IncomingMessages::limit() const { return table_->limit; }

}  // namespace larder
