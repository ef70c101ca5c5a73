// One thread that serves many session sockets.
//
// After a message the thread polls for the next one for up to kSpin, yielding, before it sleeps.
// It sleeps earlier if another thread seems to want its core (SpinWhileIdle).
//
// Ownership: owns the sockets that are added.
// Thread-safety: NewId, Add and Wake from any thread; Ask and Answered from one thread.
// Locks: that of WakeQueue, a leaf.  Sockets are called without it.
// Lifecycle: Start -> Add, ... -> destroyed, which ends the sessions of all its sockets.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <thread>

#include <sys/epoll.h>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "proto/frames/file_descriptor.h"
#include "server/runtime/heartbeat.h"
#include "server/runtime/wake_queue.h"
#include "server/sockets/session_socket.h"
#include "storage/clock.h"

namespace larder {

class SessionLoop final : public SessionSocket::Waker {
 public:
  static constexpr std::chrono::microseconds kSpin{80};
  static constexpr size_t kLingeringMax = 64;  // sockets whose sessions have ended

  // Returns an error if the kernel refuses what the loop needs.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<SessionLoop>> Start();
  ~SessionLoop() override;
  SessionLoop(const SessionLoop&) = delete;
  SessionLoop& operator=(const SessionLoop&) = delete;

  // Returns the id for a socket that will be added.
  [[nodiscard]] uint64_t NewId() { return last_id_.fetch_add(1) + 1; }
  void Add(std::unique_ptr<SessionSocket> socket);
  void Wake(uint64_t id) override;

  // Asks the thread to show that it makes progress, and wakes it to answer
  // (server/runtime/heartbeat.h).
  void Ask();
  [[nodiscard]] bool Answered() const { return heartbeat_.Answered(); }

 private:
  using Events = std::array<epoll_event, 64>;
  struct Served {
    std::unique_ptr<SessionSocket> socket;
    uint32_t events = 0;  // the events that the epoll is to report
    bool watched = true;  // the epoll contains the socket
  };
  // A socket to look at, which the loop does not serve yet if `added` is not null.
  struct Woken {
    uint64_t id = 0;
    std::unique_ptr<SessionSocket> added;
  };
  SessionLoop(FileDescriptor epoll, WakeUp wake);

  void Run();
  void RunOnce(Events* events);
  // Returns how many entries of *events are set.
  [[nodiscard]] int Wait(Events* events);
  void TakeWoken();
  // Begins to serve the socket, or ends its session if the kernel cannot watch another socket.
  void Serve(std::unique_ptr<SessionSocket> socket);
  void LookAt(uint64_t id, TimePoint now, bool hung_up = false);
  void Erase(uint64_t id);
  void LookAtAll(TimePoint now);
  // Keeps for a while a socket whose session has ended, so that the client can read how the session
  // ended.  If more than kLingeringMax sockets linger, destroys the one with the lowest id.
  void Linger(uint64_t id);
  void Watch(Served& served, const SessionSocket::Next& next, bool hung_up);

  const FileDescriptor epoll_;
  WakeQueue<Woken> woken_;
  std::atomic<uint64_t> last_id_{0};
  Heartbeat heartbeat_;
  std::thread thread_;

  // Used by the thread only.
  absl::flat_hash_map<uint64_t, Served> served_;
  std::set<uint64_t> lingering_;  // ids of sockets, the lowest first
  TimePoint spin_until_;
  TimePoint next_due_ = TimePoint::max();  // of all sockets; may be too early
};

}  // namespace larder
