// Binds the Client of client/client.h, and digest chains.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>

#include "client/python/buffer.h"
#include "client/python/cache_binding.h"
#include "client/python/session.h"
#include "storage/format/block_key.h"

namespace larder::python {
namespace {

std::shared_ptr<Client> Connect(const std::string& socket_dir, const std::string& tenant,
                                double connect_deadline_s) {
  ClientOptions options{.socket_dir = socket_dir, .tenant = tenant};
  options.connect_deadline = Within(connect_deadline_s).deadline;
  absl::StatusOr<std::unique_ptr<Client>> client = absl::UnknownError("");
  {
    const WithoutGil released;
    client = Client::Connect(options);
  }
  return OrRaise(std::move(client));
}

WriteMode WriteModeOf(const std::string& mode) {
  for (const WriteMode one : {WriteMode::kMapped, WriteMode::kStaged, WriteMode::kStream})
    if (mode == ToString(one)) return one;
  Raise(absl::InvalidArgumentError("write_mode must be 'mapped', 'staged' or 'stream'"));
}

DeviceWish DeviceWishOf(const std::string& device) {
  for (const DeviceWish one : {DeviceWish::kHost, DeviceWish::kCuda, DeviceWish::kAuto})
    if (device == ToString(one)) return one;
  Raise(absl::InvalidArgumentError("device must be 'host', 'cuda' or 'auto'"));
}

std::unique_ptr<PySession> Attach(const std::shared_ptr<Client>& self, const std::string& engine_id,
                                  uint32_t rank, uint32_t copy_threads, const std::string& role,
                                  const std::string& write_mode, uint64_t staging_bytes,
                                  bool accept_encoded, bool directives, const std::string& device,
                                  uint32_t device_number) {
  const DeviceWish wish = DeviceWishOf(device);
  absl::StatusOr<OpenedDevice> opened = absl::UnknownError("");
  {
    const WithoutGil released;
    opened = OpenDevice(wish, device_number);
  }
  OrRaise(opened.status());
  auto inbox = directives ? std::make_shared<DirectiveInbox>() : nullptr;
  SessionOptions options{.engine_id = engine_id,
                         .role = RoleOf(role),
                         .rank = rank,
                         .write_mode = WriteModeOf(write_mode),
                         .copy_threads = copy_threads,
                         .staging_bytes = ByteCount(staging_bytes),
                         .device = opened->device.get(),
                         .accept_encoded = accept_encoded};
  if (directives)
    options.on_directive = [inbox](const wire::Directive& one) { return inbox->Handle(one); };
  absl::StatusOr<std::unique_ptr<Session>> session = absl::UnknownError("");
  {
    const WithoutGil released;
    session = self->Attach(options);
  }
  return std::make_unique<PySession>(std::make_shared<SessionParts>(
      self, std::move(opened->device), std::move(inbox), OrRaise(std::move(session))));
}

}  // namespace

void BindClient(nb::module_& module) {
  BindSpecs(module);
  BindCacheMessages(module);
  BindSession(module);
  nb::class_<Client> cls(module, "Client",
                         "A connection to the daemon of this node.  Any thread may call it; its "
                         "sessions keep it alive.");
  cls.def(
      "attach", &Attach, "engine_id"_a, "rank"_a = 0, "copy_threads"_a = 1, nb::kw_only(),
      "role"_a = "both", "write_mode"_a = "mapped", "staging_bytes"_a = MiB(64).value(),
      "accept_encoded"_a = false, "directives"_a = false, "device"_a = "host",
      "device_number"_a = 0,
      "Returns a new session.  role: 'scheduler', 'worker' or 'both'.  write_mode: 'mapped', "
      "'staged' or 'stream', a wish (Session.write_mode).  staging_bytes: of the segment of a "
      "session that does not map the pool.  accept_encoded: this process decodes blocks that "
      "are encoded in HOST; otherwise the daemon does.  directives: the engine takes them "
      "(Session.take_directive).  device: where the pages of get_pages, put_pages and Restorer "
      "are: 'host', 'cuda' (the GPU with device_number), or 'auto', which is the GPU if there "
      "is one that works (Session.device).  Raises RuntimeError if there are too many sessions, "
      "ConnectionError if there is no such GPU.");
  BindCacheCalls(cls);
  module.def("connect", &Connect, "socket_dir"_a = "", "tenant"_a = "",
             "connect_deadline_s"_a = 5.0,
             "Returns a client of the daemon whose socket files are in this folder; by default "
             "$LARDER_SOCKET_DIR, otherwise /run/larder, otherwise $XDG_RUNTIME_DIR/larder.  "
             "Raises ConnectionError, which says what to do, if no daemon answers there.");
  module.def(
      "chain", [](const Digest& seed, nb::handle tokens) { return Chain(seed, NumbersOf(tokens)); },
      "seed"_a, "tokens"_a,
      "Returns the digest chain of token ids (any sequence of ints), one digest for every 16 of "
      "them.  Each digest names its 16 tokens and all tokens before them.  The digest of a block "
      "is that of its last 16 tokens.");
}

}  // namespace larder::python
