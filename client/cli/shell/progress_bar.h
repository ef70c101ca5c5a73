// How far something long is, on standard error, where that is a terminal; else nothing.
//
// Redraws one line at most ten times a second, and takes it away at the end.
// Thread-safety: none.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace larder::cli {

class ProgressBar {
 public:
  explicit ProgressBar(std::string what);  // "move"
  ~ProgressBar() { Hide(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  struct Done {
    uint64_t blocks = 0, blocks_of = 0;  // of none: not yet known
    uint64_t bytes = 0, bytes_of = 0;
  };
  void Show(const Done& done);
  // Until the next Show; for other words on the terminal.
  void Hide();

 private:
  [[nodiscard]] std::string Line(const Done& done, size_t width) const;

  const std::string what_;
  const bool on_;
  const std::chrono::steady_clock::time_point begun_;
  std::chrono::steady_clock::time_point drawn_{};
  bool shown_ = false;
};

}  // namespace larder::cli
