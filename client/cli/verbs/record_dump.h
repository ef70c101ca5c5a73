// Lists the records of a record file (docs/format.md), and whether the bytes of each are whole.  In
// a data file of the disk tier (.kv) records begin at multiples of 4,096 bytes (pages), and the
// free pages between them may hold what is left of erased records.
//
// Only the catalog knows which records of a .kv file are in use.  So a record of a .kv file that is
// not whole may be damaged, or erased and partly overwritten; a whole record may be erased, too;
// and a page whose header is damaged looks like a free page.
// DumpRecords has the payload of at most one segment in memory at a time, and needs no daemon.
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
  bool of_disk = false;  // the file is a .kv file
  size_t records = 0, not_whole = 0;
};

// Returns an error only if the file cannot be opened or read, or is not a regular file; a damaged
// record is no error.
[[nodiscard]] absl::StatusOr<RecordDump> DumpRecords(const std::string& path);

}  // namespace larder::cli
