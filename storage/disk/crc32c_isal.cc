// isa-l's CRC32C in the place of RocksDB's, which computes it in software (1.7 GB/s) and has blobs
// pay it for each byte.  The definition in the program is found before the shared library's.
#include <isa-l/crc.h>

#include <cstddef>
#include <cstdint>

namespace rocksdb::crc32c {

uint32_t Extend(uint32_t crc, const char* data, size_t bytes);
uint32_t Extend(uint32_t crc, const char* data, size_t bytes) {
  auto* from = reinterpret_cast<unsigned char*>(const_cast<char*>(data));
  return ~crc32_iscsi(from, static_cast<int>(bytes), ~crc);
}

}  // namespace rocksdb::crc32c
