// The parts of a Session, as Client::Attach put them together.  Private to session.cc and
// client.cc.
//
// Thread-safety: The pointers are const after Attach; each part is thread-safe by itself.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "client/session/session_channel.h"
#include "client/session/session_core.h"
#include "client/transport/copy_pool.h"
#include "client/transport/grpc_stream_transport.h"
#include "client/transport/shm_transport.h"
#include "storage/memory/copy_kernels.h"

namespace larder {

struct SessionImpl {
  // Declared in reverse order of destruction: the transports end first, then the stream, which
  // hands messages to the core, then the copy pool and the core.
  std::shared_ptr<SessionCore> core;
  std::unique_ptr<CopyPool> pool;
  std::unique_ptr<SessionStream> stream;
  std::unique_ptr<GrpcStreamTransport> byte_stream;  // stream mode
  std::unique_ptr<ShmTransport> shm;                 // mapped and staged
  // Bytes that ReportDevice has sent since it last waited for the daemon to take them.
  std::atomic<uint64_t> reported{0};

  [[nodiscard]] Transport& transport() const {
    return shm != nullptr ? static_cast<Transport&>(*shm) : static_cast<Transport&>(*byte_stream);
  }
};

}  // namespace larder
