// Shows on standard error how far a long operation is.  Prints nothing if standard error is no
// terminal.
//
// Show redraws one line, at most ten times per second (but always after a Hide); the destructor
// erases the line.
// Thread-safety: none.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace larder::cli {

class ProgressBar {
 public:
  explicit ProgressBar(std::string what);  // the label, such as "move"
  ~ProgressBar() { Hide(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  struct Done {
    uint64_t blocks = 0, blocks_of = 0;  // of a total; 0 if the total is not yet known
    uint64_t bytes = 0, bytes_of = 0;
  };
  void Show(const Done& done);
  // Erases the line until the next Show, so that other text can be printed.
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
