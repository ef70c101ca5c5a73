// Memory that Python owns and C++ reads or writes: PEP 3118 buffers.
//
// Ownership: a Buffer keeps its object exported, so that Python neither moves nor frees the memory.
// Thread-safety: the caller of constructor and destructor holds the GIL; bytes() needs no GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "client/python/binding.h"

namespace larder::python {

class Buffer {
 public:
  // Raises BufferError if the object is not contiguous or, where that is asked for, not writable.
  Buffer(nb::handle object, bool writable) {
    if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0)
      throw nb::python_error();
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { PyBuffer_Release(&view_); }
  [[nodiscard]] std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(view_.buf), static_cast<size_t>(view_.len)};
  }

 private:
  Py_buffer view_ = {};
};

// Returns the values that a buffer holds one after the other.  Raises ValueError if its size is not
// a multiple of theirs.
template <class T>
std::vector<T> ValuesOf(nb::handle object) {
  const Buffer buffer(object, /*writable=*/false);
  const std::span<std::byte> bytes = buffer.bytes();
  if (bytes.size() % sizeof(T) != 0) {
    Raise(absl::InvalidArgumentError("a buffer has a size that is not a multiple of its values"));
  }
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

inline nb::bytes Packed(const void* data, size_t bytes) { return nb::bytes(data, bytes); }

// Token ids or page numbers: a buffer of 32-bit values, or any sequence of ints.
inline std::vector<uint32_t> NumbersOf(nb::handle object) {
  if (PyObject_CheckBuffer(object.ptr()) != 0) return ValuesOf<uint32_t>(object);
  return nb::cast<std::vector<uint32_t>>(object);
}

}  // namespace larder::python
