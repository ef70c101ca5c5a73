// Binds reading and writing blocks where they lie: Session::Acquire and Reserve of client/client.h.
//
// Python sees segments as memoryviews.  Each of them keeps its Lease or Reservation alive, and is
// counted there, because its memory must not be given back, nor published, while it is in use.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "client/client.h"
#include "client/python/buffer.h"
#include "client/python/session.h"

namespace larder::python {
namespace {

constexpr size_t kLeasedMax = 512;  // of an Acquire that asks for tables

// The memoryviews that Python has of each block.  The GIL guards it.
class Views {
 public:
  explicit Views(size_t blocks) : blocks_(blocks) {}
  // Returns false if there may be no views of the block any more.
  [[nodiscard]] bool Begin(size_t block) {
    if (blocks_[block].ended) return false;
    ++blocks_[block].views;
    return true;
  }
  void End(size_t block) { --blocks_[block].views; }
  // From now on there are no views of these blocks.  Raises BufferError if there is one now.
  void Close(std::span<const uint32_t> blocks) {
    for (const uint32_t block : blocks) {
      if (blocks_[block].views == 0) continue;
      const std::string wrong = "a view of block " + std::to_string(block) +
                                " is still in use: end it, and arrays over it, before (del, or "
                                "memoryview.release())";
      throw nb::buffer_error(wrong.c_str());
    }
    for (const uint32_t block : blocks) blocks_[block].ended = true;
  }
  void Reopen(size_t block) { blocks_[block].ended = false; }

 private:
  struct Block {
    int views = 0;
    bool ended = false;
  };
  std::vector<Block> blocks_;
};

// One segment of a block as a Python object with the buffer protocol: memoryview(it) begins a view
// of `bytes`, and Python may begin more from the memoryview's `obj`.
struct PySegment {
  nb::object owner;  // has the views
  Views* views;
  size_t block;
  std::span<std::byte> bytes;
  bool writable;
};

int BeginView(PyObject* self, Py_buffer* view, int flags) {
  view->obj = nullptr;
  if (!nb::inst_ready(self)) {
    PyErr_SetString(PyExc_BufferError, "there is no segment");
    return -1;
  }
  const PySegment& segment = *nb::inst_ptr<PySegment>(self);
  if (!segment.views->Begin(segment.block)) {
    PyErr_SetString(PyExc_BufferError, "the block is published or given back");
    return -1;
  }
  const int made = PyBuffer_FillInfo(view, self, segment.bytes.data(),
                                     static_cast<Py_ssize_t>(segment.bytes.size()),
                                     segment.writable ? 0 : 1, flags);
  if (made != 0) segment.views->End(segment.block);
  return made;
}

void EndView(PyObject* self, Py_buffer*) {
  const PySegment& segment = *nb::inst_ptr<PySegment>(self);
  segment.views->End(segment.block);
}

// Returns a memoryview of each segment of a payload.
nb::list ViewsOf(nb::object owner, Views* views, size_t block, std::span<std::byte> payload,
                 const SegmentTable& table, bool writable) {
  nb::list list;
  size_t at = 0;
  for (const Segment& segment : table.segments) {
    const nb::object part =
        nb::cast(PySegment{owner, views, block, payload.subspan(at, segment.bytes), writable},
                 nb::rv_policy::move);
    PyObject* const view = PyMemoryView_FromObject(part.ptr());
    if (view == nullptr) throw nb::python_error();
    list.append(nb::steal(view));
    at += PayloadStride(segment.bytes);
  }
  return list;
}

std::vector<uint32_t> AllOf(size_t blocks) {
  std::vector<uint32_t> all(blocks);
  for (size_t i = 0; i < blocks; ++i) all[i] = static_cast<uint32_t>(i);
  return all;
}

// A Lease for Python, which keeps its session alive.
class PyLease {
 public:
  PyLease(std::shared_ptr<Session> session, Lease lease)
      : session_(std::move(session)), lease_(std::move(lease)), views_(lease_.size()) {}
  PyLease(const PyLease&) = delete;
  PyLease& operator=(const PyLease&) = delete;

  [[nodiscard]] size_t size() const { return lease_.size(); }
  [[nodiscard]] bool Valid() const { return lease_.Valid(); }
  [[nodiscard]] nb::bytes Status() const {
    std::vector<BlockStatus> all;
    for (size_t i = 0; i < size(); ++i) all.push_back(lease_.status(i));
    return Packed(all.data(), all.size());
  }
  static nb::list Segments(nb::object object, size_t block) {
    auto& self = nb::cast<PyLease&>(object);
    if (block >= self.size()) throw nb::index_error("there is no such block");
    const std::span<const std::byte> view = self.lease_.View(block);
    if (view.empty()) Raise(absl::InvalidArgumentError("the block is not held: see status, valid"));
    const SegmentTable* const table = self.lease_.Table(block);
    if (table == nullptr || table->Decoded().encoded() ||
        table->Decoded().PayloadBytes() != ByteCount(view.size()))
      Raise(absl::InternalError("the daemon's answer does not say where the segments lie"));
    return ViewsOf(std::move(object), &self.views_, block,
                   {const_cast<std::byte*>(view.data()), view.size()}, table->Decoded(),
                   /*writable=*/false);
  }
  void Release() {
    views_.Close(AllOf(size()));
    lease_.Release();
  }

 private:
  std::shared_ptr<Session> session_;
  Lease lease_;  // destroyed before its session
  Views views_;
};

std::unique_ptr<PyLease> Acquire(const PySession& self, const VariantHandle& variant,
                                 nb::handle digests, LeaseId promise, double life_s,
                                 double deadline_s) {
  const auto session = self.Open();
  CallOptions options = Within(deadline_s);
  options.tables = true;
  options.promise = promise;
  options.life = Milliseconds(life_s, "life_s", 600);
  const std::vector<Digest> names = DigestsOf(digests);
  if (names.size() > kLeasedMax)
    Raise(absl::InvalidArgumentError("a lease has at most 512 blocks"));
  absl::StatusOr<Lease> lease = absl::UnknownError("");
  {
    const WithoutGil released;
    lease = session->Acquire(variant, names, options);
  }
  return std::make_unique<PyLease>(session, OrRaise(std::move(lease)));
}

// Consecutive blocks of a chain that Python fills in place.
class PyReservation {
 public:
  struct Chain {
    VariantHandle variant;
    Digest parent, content;
    std::vector<Digest> digests;
    std::vector<uint32_t> tokens;
    SegmentTable table;  // of each block
  };
  PyReservation(std::shared_ptr<Session> session, Reservation reservation, Chain chain)
      : session_(std::move(session)),
        reservation_(std::move(reservation)),
        chain_(std::move(chain)),
        views_(chain_.digests.size()) {}
  PyReservation(const PyReservation&) = delete;
  PyReservation& operator=(const PyReservation&) = delete;

  [[nodiscard]] size_t size() const { return chain_.digests.size(); }
  [[nodiscard]] bool Taken(size_t block) const {
    RaiseIfBusy();
    if (block >= size()) throw nb::index_error("there is no such block");
    return reservation_.Taken(block);
  }
  static nb::list Segments(nb::object object, size_t block) {
    auto& self = nb::cast<PyReservation&>(object);
    if (self.Taken(block) || self.reservation_.Bytes(block).empty())
      Raise(absl::InvalidArgumentError("the block is taken or published, so it cannot be filled"));
    return ViewsOf(std::move(object), &self.views_, block, self.reservation_.Bytes(block),
                   self.chain_.table, /*writable=*/true);
  }
  nb::bytes Publish(std::optional<std::vector<uint32_t>> wanted, double deadline_s) {
    RaiseIfBusy();
    const CallOptions options = Within(deadline_s);
    const std::vector<uint32_t> blocks = wanted ? *std::move(wanted) : AllOf(size());
    std::vector<Reservation::Block> published;
    for (const uint32_t block : blocks) {
      if (block >= size()) throw nb::index_error("there is no such block");
      published.push_back(BlockOf(block));
    }
    views_.Close(blocks);
    absl::StatusOr<std::vector<BlockStatus>> status;
    publishing_ = true;
    {
      const WithoutGil released;
      status = reservation_.Publish(chain_.variant, published, options);
    }
    publishing_ = false;
    for (const uint32_t block : blocks)
      if (!reservation_.Bytes(block).empty()) views_.Reopen(block);
    const std::vector<BlockStatus> all = OrRaise(std::move(status));
    return Packed(all.data(), all.size());
  }
  // Gives back what was not published.
  void Release() {
    if (released_) return;
    RaiseIfBusy();
    views_.Close(AllOf(size()));
    reservation_ = Reservation();
    released_ = true;
  }

 private:
  void RaiseIfBusy() const {
    if (publishing_)
      Raise(absl::FailedPreconditionError("another thread publishes this reservation now"));
    if (released_) Raise(absl::InvalidArgumentError("the reservation is released"));
  }
  [[nodiscard]] Reservation::Block BlockOf(uint32_t block) const {
    const size_t each = chain_.variant.spec.block_tokens;
    return {.extent = block,
            .digest = chain_.digests[block],
            .parent = block == 0 ? chain_.parent : chain_.digests[block - 1],
            .tokens = std::span(chain_.tokens).subspan(block * each, each),
            .table = chain_.table,
            .content = chain_.content};
  }
  std::shared_ptr<Session> session_;
  Reservation reservation_;  // destroyed before its session
  Chain chain_;
  Views views_;
  bool publishing_ = false, released_ = false;  // the GIL guards them
};

// The format wants zeros between segments (storage/format/layout.h).
void ClearPadding(std::span<std::byte> payload, const SegmentTable& table) {
  size_t at = 0;
  for (const Segment& segment : table.segments) {
    const size_t end = std::min<size_t>(payload.size(), at + PayloadStride(segment.bytes));
    std::ranges::fill(payload.subspan(at + segment.bytes, end - at - segment.bytes), std::byte(0));
    at = end;
  }
}

std::unique_ptr<PyReservation> Reserve(const PySession& self, const VariantHandle& variant,
                                       const Digest& parent, nb::handle digests, nb::handle tokens,
                                       const std::vector<uint32_t>& segment_bytes,
                                       std::optional<Digest> content, double life_s,
                                       double deadline_s) {
  const auto session = self.Open();
  CallOptions options = Within(deadline_s);
  options.life = Milliseconds(life_s, "life_s", 600);
  if (session->write_mode() != WriteMode::kMapped) {
    Raise(absl::PermissionDeniedError("this session does not write in place (write_mode): " +
                                      session->write_mode_reason()));
  }
  PyReservation::Chain chain{.variant = variant,
                             .parent = parent,
                             .content = content.value_or(Digest()),
                             .digests = DigestsOf(digests),
                             .tokens = NumbersOf(tokens),
                             .table = {}};
  for (const uint32_t bytes : segment_bytes) chain.table.segments.push_back({.bytes = bytes});
  OrRaise(chain.table.Validate(variant.spec.layers));
  if (chain.tokens.size() != chain.digests.size() * variant.spec.block_tokens)
    Raise(absl::InvalidArgumentError("there must be block_tokens tokens for each block"));
  const std::vector<ByteCount> bytes(chain.digests.size(), chain.table.PayloadBytes());
  absl::StatusOr<Reservation> reserved = absl::UnknownError("");
  {
    const WithoutGil released;
    reserved = session->Reserve(variant, chain.digests, bytes, options);
    for (size_t i = 0; reserved.ok() && i < reserved->size(); ++i)
      if (!reserved->Taken(i)) ClearPadding(reserved->Bytes(i), chain.table);
  }
  return std::make_unique<PyReservation>(session, OrRaise(std::move(reserved)), std::move(chain));
}

// Releases `held` at the end of a Python `with` block.  `type` is the type of the exception that
// ends the block, or None.  If there is one, Python raises it on, and a refusal to release does not
// replace it: the last view then releases the memory.
template <class Held>
void Leave(Held& held, nb::handle type) {
  try {
    held.Release();
  } catch (const nb::builtin_exception&) {
    if (type.is_none()) throw;
  }
}

void BindLease(nb::module_& module) {
  nb::class_<PyLease>(
      module, "Lease",
      "Blocks that the daemon holds for reading in place.  One thread at a time uses it.  After a "
      "fork the child must not touch views.  It keeps its session alive.")
      .def("__len__", &PyLease::size)
      .def_prop_ro("status", &PyLease::Status, "One byte, a BlockStatus, for each block.")
      .def("segments", &PyLease::Segments, "block"_a,
           nb::sig("def segments(self, block: int) -> list[memoryview]"),
           "Returns a read-only memoryview of each segment, usually one for each layer, of a block "
           "whose status is OK.  numpy.frombuffer makes an array of it without a copy.")
      .def_prop_ro("valid", &PyLease::Valid,
                   "True only while the daemon promises the bytes.  Look at it after the last "
                   "read: if it is False, discard what was read.")
      .def("release", &PyLease::Release,
           "Lets the blocks go.  Raises BufferError while there are views of them.")
      .def("__enter__", [](nb::object self) { return self; })
      .def(
          "__exit__",
          [](PyLease& self, nb::handle type, nb::handle, nb::handle) { Leave(self, type); },
          "type"_a.none(), "value"_a.none(), "traceback"_a.none());
}

void BindReservation(nb::module_& module) {
  nb::class_<PyReservation>(
      module, "Reservation",
      "Memory of the pool for consecutive blocks of a chain, to be filled in place and published.  "
      "One thread at a time uses it.  After a fork the child must not touch views.  It keeps its "
      "session alive.")
      .def("__len__", &PyReservation::size)
      .def("taken", &PyReservation::Taken, "block"_a,
           "Returns whether a block of this name was there already, so that it need not be filled.")
      .def(
          "segments", &PyReservation::Segments, "block"_a,
          nb::sig("def segments(self, block: int) -> list[memoryview]"),
          "Returns a writable memoryview of each layer's segment of a block, of undefined content.")
      .def("publish", &PyReservation::Publish, "blocks"_a = nb::none(), nb::kw_only(),
           "deadline_s"_a = 10.0,
           "Makes these blocks (by default all) visible, and returns one byte, a BlockStatus, for "
           "each: DUPLICATE, one of this name was there already; NOT_HELD, it is published, or the "
           "daemon has revoked it; INVALID, to be corrected and published again.  Raises "
           "BufferError while there are views of them, because a block that others can read must "
           "not change.")
      .def("release", &PyReservation::Release,
           "Gives back what was not published.  Raises BufferError while there are views.")
      .def("__enter__", [](nb::object self) { return self; })
      .def(
          "__exit__",
          [](PyReservation& self, nb::handle type, nb::handle, nb::handle) { Leave(self, type); },
          "type"_a.none(), "value"_a.none(), "traceback"_a.none());
}

}  // namespace

void BindInPlace(nb::module_& module, nb::class_<PySession>& session) {
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(BeginView)},
                                {Py_bf_releasebuffer, reinterpret_cast<void*>(EndView)},
                                {0, nullptr}};
  nb::class_<PySegment>(module, "_Segment", nb::type_slots(slots));
  BindLease(module);
  BindReservation(module);
  session
      .def(
          "acquire", &Acquire, "variant"_a, "digests"_a, nb::kw_only(), "promise"_a = LeaseId(),
          "life_s"_a = 0.0, "deadline_s"_a = 10.0,
          "Holds at most 512 blocks for reading in place, and returns a Lease.  The daemon revokes "
          "it after life_s: 0.1 to 600, or 0 for deadline_s.  Raises ConnectionError if this "
          "session can neither map the pool nor read by copies (read_mode_reason).")
      .def("reserve", &Reserve, "variant"_a, nb::kw_only(), "parent"_a, "digests"_a, "tokens"_a,
           "segment_bytes"_a, "content"_a = nb::none(), "life_s"_a = 0.0, "deadline_s"_a = 10.0,
           "Reserves memory of the pool for consecutive blocks of a chain, and returns a "
           "Reservation.  segment_bytes: the size of each layer's segment.  The daemon revokes it "
           "after life_s: 0.1 to 600, or 0 for deadline_s; what is written then is lost, and the "
           "memory is kept until there are no views of it.  Raises PermissionError unless "
           "write_mode is 'mapped', RuntimeError if the pool or this process's share of it is "
           "full.");
}

}  // namespace larder::python
