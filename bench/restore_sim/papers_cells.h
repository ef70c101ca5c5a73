// The numbers of Cake's Tables 3 to 7.
//
// Thread-safety: read only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace larder::bench {

struct Cell {
  int table = 0;
  std::string hardware = {}, model = {};
  double utilization = 1, gbps = 0;
  uint32_t chunk_tokens = 512, tokens = 16'384;
  double kv_bits = 16;
  double over_load = 0,
         over_compute = 0;  // Cake's speedup over loading alone, over computing alone
};

[[nodiscard]] const std::vector<Cell>& PaperCells();
[[nodiscard]] std::string Describe(const Cell& cell);

}  // namespace larder::bench
