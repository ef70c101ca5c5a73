// What a record file holds (docs/format.md), record by record, and whether its bytes are whole.  A
// file of the disk tier (.kv) has records at pages, and free pages between them that may hold what
// is left of erased ones.
//
// Which records of a .kv are in use, its catalog knows alone.  Hence what is not whole there may be
// damaged, or erased and partly written over; what is whole may be erased, too; and a page whose
// header is damaged looks like a free one.
// Reads headers and segments, one segment in memory at a time; needs no daemon.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"

namespace larder::cli {

using Json = nlohmann::ordered_json;

struct RecordDump {
  Json json;
  std::string text;
  bool of_disk = false;  // a .kv
  size_t records = 0, not_whole = 0;
};

// Only a file that cannot be read is an error.
[[nodiscard]] absl::StatusOr<RecordDump> DumpRecords(const std::string& path);

}  // namespace larder::cli
