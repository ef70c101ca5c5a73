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
#include <string_view>
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

// Returns whether a buffer can be read as packed 32-bit values: bytes, or integers of 32 bits.
inline bool IsPacked32(nb::handle object) {
  Py_buffer view;
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_FORMAT | PyBUF_ND) != 0) {
    PyErr_Clear();
    return false;
  }
  const std::string_view format = view.format == nullptr ? "B" : view.format;
  const bool bytes = view.itemsize == 1 && format.find_first_of("Bc") != std::string_view::npos &&
                     (PyBytes_Check(object.ptr()) || PyByteArray_Check(object.ptr()) ||
                      PyMemoryView_Check(object.ptr()));
  // Signed values go through a conversion that refuses those below 0.
  const bool numbers = view.itemsize == 4 && (format == "I" || format == "L" || format == "<I");
  PyBuffer_Release(&view);
  return bytes || numbers;
}

// Token ids or page numbers: bytes of packed 32-bit values, or any sequence or array of integers.
// Raises ValueError for anything else.
inline std::vector<uint32_t> NumbersOf(nb::handle object) {
  if (IsPacked32(object)) return ValuesOf<uint32_t>(object);
  std::vector<uint32_t> numbers;
  if (!nb::try_cast(object, numbers)) {
    Raise(absl::InvalidArgumentError(
        "token ids and page numbers must be a sequence of ints from 0 to 2**32 - 1, or bytes of "
        "32-bit values"));
  }
  return numbers;
}

// Names of blocks: bytes with 16 for each, or any sequence of digests.  Raises ValueError for
// anything else.
inline std::vector<Digest> DigestsOf(nb::handle object) {
  if (PyObject_CheckBuffer(object.ptr()) != 0) return ValuesOf<Digest>(object);
  std::vector<Digest> digests;
  if (!nb::try_cast(object, digests)) {
    Raise(absl::InvalidArgumentError(
        "digests must be a sequence of bytes of length 16, or bytes with 16 for each"));
  }
  return digests;
}

}  // namespace larder::python
