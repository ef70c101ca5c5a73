// The numbers of Cake's Tables 3 to 7, as printed.
#include "bench/restore_sim/papers_cells.h"

#include "absl/strings/str_format.h"

namespace larder::bench {
namespace {

struct Speedup {
  double over_load, over_compute;
};

// LongAlpaca-13B, 16k tokens, chunks of 512; 7, 25, 32, 56, 100 Gbps.
struct Row3 {
  const char* hardware;
  double utilization;
  Speedup at[5];
};
constexpr double kGbps3[] = {7, 25, 32, 56, 100};
constexpr Row3 kTable3[] = {
    {"2xA100", 0.125, {{1.87, 2.18}, {1.25, 5.06}, {1.18, 6.12}, {1.09, 9.54}, {1.04, 15.27}}},
    {"2xA100", 0.5, {{4.57, 1.29}, {2.07, 2.03}, {1.80, 2.24}, {1.46, 3.06}, {1.30, 4.62}}},
    {"2xA100", 0.875, {{7.22, 1.15}, {2.75, 1.53}, {2.36, 1.67}, {1.83, 2.17}, {1.50, 3.02}}},
    {"2xA100", 1, {{8.10, 1.10}, {3.03, 1.43}, {2.63, 1.59}, {1.97, 2.00}, {1.54, 2.64}}},
    {"A100", 0.125, {{1.57, 2.85}, {1.14, 7.22}, {1.10, 8.95}, {1.03, 14.06}, {1.02, 23.59}}},
    {"A100", 0.5, {{3.35, 1.46}, {1.68, 2.55}, {1.55, 3.01}, {1.30, 4.26}, {1.17, 6.48}}},
    {"A100", 0.875, {{5.05, 1.26}, {2.18, 1.88}, {1.90, 2.10}, {1.56, 2.91}, {1.30, 4.07}}},
    {"A100", 1, {{5.62, 1.21}, {2.41, 1.81}, {2.00, 1.91}, {1.69, 2.71}, {1.30, 3.52}}},
    {"H100", 0.125, {{1.74, 2.40}, {1.21, 5.80}, {1.13, 6.90}, {1.08, 11.08}, {1.05, 18.24}}},
    {"H100", 0.5, {{4.13, 1.38}, {1.94, 2.25}, {1.72, 2.55}, {1.45, 3.62}, {1.27, 5.34}}},
    {"H100", 0.875, {{6.23, 1.17}, {2.53, 1.66}, {2.23, 1.86}, {1.74, 2.44}, {1.50, 3.54}}},
    {"H100", 1, {{7.13, 1.17}, {2.74, 1.56}, {2.40, 1.75}, {1.84, 2.25}, {1.49, 3.08}}},
};

// A100, 32 Gbps, 16k tokens; 7B, 13B.
struct Row4 {
  uint32_t chunk_tokens;
  Speedup at[2];
};
constexpr const char* kModels4[] = {"7B", "13B"};
constexpr Row4 kTable4[] = {
    {64, {{1.47, 3.47}, {1.47, 3.55}}},   {128, {{1.83, 2.40}, {1.79, 2.45}}},
    {256, {{2.06, 2.09}, {1.96, 2.20}}},  {512, {{2.20, 1.94}, {2.03, 1.91}}},
    {1024, {{2.15, 1.70}, {2.18, 1.91}}}, {2048, {{2.31, 1.71}, {2.04, 1.70}}},
};

// LongAlpaca-13B, chunks of 512; 4k, 8k, 12k, 16k tokens.
struct Row5 {
  const char* hardware;
  double gbps, utilization;
  Speedup at[4];
};
constexpr Row5 kTable5[] = {
    {"2xA100", 7, 0.125, {{2.02, 1.83}, {1.97, 1.95}, {1.94, 2.09}, {1.87, 2.18}}},
    {"2xA100", 7, 0.5, {{4.75, 1.08}, {4.97, 1.21}, {4.71, 1.24}, {4.57, 1.29}}},
    {"2xA100", 7, 0.875, {{7.31, 1.00}, {7.49, 1.06}, {7.61, 1.15}, {7.22, 1.15}}},
    {"2xA100", 7, 1, {{9.06, 0.99}, {8.65, 1.04}, {8.43, 1.08}, {8.10, 1.10}}},
    {"2xA100", 32, 0.125, {{1.13, 4.41}, {1.19, 5.17}, {1.19, 5.68}, {1.18, 6.12}}},
    {"2xA100", 32, 0.5, {{1.68, 1.64}, {1.87, 1.99}, {1.80, 2.09}, {1.80, 2.24}}},
    {"2xA100", 32, 0.875, {{2.47, 1.45}, {2.45, 1.52}, {2.49, 1.66}, {2.36, 1.67}}},
    {"2xA100", 32, 1, {{2.67, 1.25}, {2.73, 1.43}, {2.69, 1.52}, {2.63, 1.59}}},
    {"A100", 7, 0.125, {{1.62, 2.30}, {1.59, 2.47}, {1.58, 2.67}, {1.57, 2.85}}},
    {"A100", 7, 0.5, {{3.58, 1.27}, {3.48, 1.32}, {3.45, 1.41}, {3.35, 1.46}}},
    {"A100", 7, 0.875, {{5.36, 1.12}, {5.18, 1.15}, {5.17, 1.21}, {5.05, 1.26}}},
    {"A100", 7, 1, {{6.31, 1.11}, {5.95, 1.13}, {5.66, 1.15}, {5.62, 1.21}}},
    {"A100", 32, 0.125, {{1.04, 6.37}, {1.06, 7.20}, {1.08, 8.04}, {1.10, 8.95}}},
    {"A100", 32, 0.5, {{1.38, 2.10}, {1.49, 2.48}, {1.50, 2.71}, {1.55, 3.01}}},
    {"A100", 32, 0.875, {{1.83, 1.65}, {1.93, 1.87}, {1.91, 1.97}, {1.90, 2.10}}},
    {"A100", 32, 1, {{2.06, 1.55}, {2.15, 1.79}, {2.00, 1.79}, {2.00, 1.91}}},
};

// 2xA100, chunks of 512, 16k tokens; four models.
struct Row6 {
  double utilization, gbps;
  Speedup at[4];
};
constexpr const char* kModels6[] = {"7B", "13B", "8B", "70B"};
constexpr Row6 kTable6[] = {
    {0.125, 7, {{1.92, 2.15}, {1.87, 2.18}, {1.20, 5.56}, {0.99, 12.92}}},
    {0.125, 32, {{1.20, 5.98}, {1.18, 6.12}, {0.98, 19.47}, {0.80, 44.26}}},
    {0.5, 7, {{4.79, 1.30}, {4.57, 1.29}, {1.88, 2.13}, {1.25, 3.99}}},
    {0.5, 32, {{1.85, 2.22}, {1.80, 2.24}, {1.13, 5.42}, {0.91, 12.24}}},
    {1, 7, {{8.55, 1.10}, {8.10, 1.10}, {2.81, 1.52}, {1.66, 2.64}}},
    {1, 32, {{2.79, 1.60}, {2.63, 1.59}, {1.37, 3.18}, {1.02, 6.86}}},
};

// 2xA100, LongAlpaca-13B, 16k tokens; KV of 16, 8, 3 bits.
struct Row7 {
  double gbps;
  Speedup at[3];
};
constexpr double kBits7[] = {16, 8, 3};
constexpr Row7 kTable7[] = {
    {7, {{8.10, 1.10}, {4.63, 1.22}, {2.39, 1.63}}},
    {25, {{3.03, 1.43}, {2.07, 1.87}, {1.41, 3.09}}},
    {32, {{2.63, 1.59}, {1.85, 2.12}, {1.37, 3.73}}},
    {56, {{1.97, 2.00}, {1.49, 2.85}, {1.26, 5.38}}},
};

class Cells {
 public:
  std::vector<Cell> All() {
    for (const Row3& row : kTable3) {
      for (int i = 0; i < 5; ++i)
        Add({3, row.hardware, "13B", row.utilization, kGbps3[i]}, row.at[i]);
    }
    for (const Row4& row : kTable4) {
      for (int i = 0; i < 2; ++i) Add({4, "A100", kModels4[i], 1, 32, row.chunk_tokens}, row.at[i]);
    }
    for (const Row5& row : kTable5) {
      for (uint32_t i = 0; i < 4; ++i) {
        Add({5, row.hardware, "13B", row.utilization, row.gbps, 512, 4096 * (i + 1)}, row.at[i]);
      }
    }
    for (const Row6& row : kTable6) {
      for (int i = 0; i < 4; ++i)
        Add({6, "2xA100", kModels6[i], row.utilization, row.gbps}, row.at[i]);
    }
    for (const Row7& row : kTable7) {
      for (int i = 0; i < 3; ++i)
        Add({7, "2xA100", "13B", 1, row.gbps, 512, 16'384, kBits7[i]}, row.at[i]);
    }
    return std::move(cells_);
  }

 private:
  void Add(Cell cell, Speedup speedup) {
    cell.over_load = speedup.over_load;
    cell.over_compute = speedup.over_compute;
    cells_.push_back(std::move(cell));
  }
  std::vector<Cell> cells_;
};

}  // namespace

const std::vector<Cell>& PaperCells() {
  static const std::vector<Cell> cells = Cells().All();
  return cells;
}

std::string Describe(const Cell& cell) {
  return absl::StrFormat("Table %d, %s, %s, %g %%, %g Gbps, chunks of %d, %d tokens, %g bits",
                         cell.table, cell.hardware, cell.model, cell.utilization * 100, cell.gbps,
                         cell.chunk_tokens, cell.tokens, cell.kv_bits);
}

}  // namespace larder::bench
