// What the files of the Python binding share: how ids, digests and statuses appear in Python.
//
// Ids, channels and stages are ints, a digest is a bytes object of length 16, and a Status becomes
// the nearest of Python's own exceptions with the message of the status.
// Thread-safety: The caller of any function here holds the GIL.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/restore/costs/cost_model.h"
#include "storage/types.h"

namespace larder::python {

namespace nb = nanobind;
using nb::literals::operator""_a;

// Raises ValueError for InvalidArgument, LookupError for NotFound, TimeoutError for
// DeadlineExceeded, ConnectionError for Unavailable, PermissionError for Unauthenticated and
// PermissionDenied, RuntimeError for every other code.  The exception's attribute `code` is the
// status code, such as "RESOURCE_EXHAUSTED".
[[noreturn]] void Raise(const absl::Status& status);
inline void OrRaise(const absl::Status& status) {
  if (!status.ok()) Raise(status);
}
template <class T>
T OrRaise(absl::StatusOr<T> result) {
  if (!result.ok()) Raise(result.status());
  return *std::move(result);
}

// Lets other threads of Python run while this one waits or copies.
//
// While the interpreter ends, Python ends each other thread that asks for the GIL.  It does so by
// unwinding the thread's stack, which C++ answers by ending the process, so such a thread sleeps
// here until the process has ended.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() noexcept(false) {
    struct SleepUnlessBack {
      bool back = false;
      ~SleepUnlessBack() {
        while (!back) pause();
      }
    } unless;
    PyEval_RestoreThread(state_);
    unless.back = true;
  }

 private:
  PyThreadState* const state_;
};

void BindCosts(nb::module_& module);
void BindPlan(nb::module_& module);
void BindRequests(nb::module_& module);
void BindScheduler(nb::module_& module);
void BindPages(nb::module_& module);
void BindSpecs(nb::module_& module);
void BindSession(nb::module_& module);
void BindClient(nb::module_& module);
void BindRestorer(nb::module_& module);
void BindEngine(nb::module_& module);
void BindClaims(nb::module_& module);

}  // namespace larder::python

namespace nanobind::detail {

template <class Tag>
struct type_caster<larder::Id<Tag>> {
  NB_TYPE_CASTER(larder::Id<Tag>, const_name("int"))
  bool from_python(handle source, uint32_t flags, cleanup_list* cleanup) noexcept {
    make_caster<uint64_t> number;
    if (!number.from_python(source, flags, cleanup)) return false;
    value = larder::Id<Tag>{number.value};
    return true;
  }
  static handle from_cpp(larder::Id<Tag> id, rv_policy, cleanup_list*) noexcept {
    return PyLong_FromUnsignedLongLong(id.value);
  }
};

template <>
struct type_caster<larder::ChannelId> {
  NB_TYPE_CASTER(larder::ChannelId, const_name("int"))
  bool from_python(handle source, uint32_t flags, cleanup_list* cleanup) noexcept {
    make_caster<uint16_t> number;
    if (!number.from_python(source, flags, cleanup)) return false;
    value = static_cast<larder::ChannelId>(number.value);
    return true;
  }
  static handle from_cpp(larder::ChannelId channel, rv_policy, cleanup_list*) noexcept {
    return PyLong_FromLong(static_cast<long>(channel));
  }
};

template <>
struct type_caster<larder::Digest> {
  NB_TYPE_CASTER(larder::Digest, const_name("bytes"))
  bool from_python(handle source, uint32_t, cleanup_list*) noexcept {
    if (!PyBytes_Check(source.ptr())) return false;
    if (PyBytes_Size(source.ptr()) != static_cast<Py_ssize_t>(larder::kDigestBytes)) return false;
    std::memcpy(value.bytes.data(), PyBytes_AsString(source.ptr()), larder::kDigestBytes);
    return true;
  }
  static handle from_cpp(const larder::Digest& digest, rv_policy, cleanup_list*) noexcept {
    return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(digest.bytes.data()),
                                     static_cast<Py_ssize_t>(larder::kDigestBytes));
  }
};

}  // namespace nanobind::detail
