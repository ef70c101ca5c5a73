#include "bench/harness/worker.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string_view>
#include <thread>

namespace larder::bench {

std::optional<WorkerArguments> ParseWorker(int argc, char** argv) {
  constexpr std::string_view kFlag = "--worker=";
  if (argc < 2 || !std::string_view(argv[1]).starts_with(kFlag)) return std::nullopt;
  WorkerArguments arguments;
  arguments.index = std::strtoul(argv[1] + kFlag.size(), nullptr, 10);
  arguments.rest.assign(argv + 2, argv + argc);
  return arguments;
}

int ServeWorker(
    const absl::Status& setup,
    const std::function<absl::StatusOr<std::string>(const std::vector<double>& command)>& handle) {
  absl::Status status = setup;
  if (status.ok()) std::cout << "ready" << std::endl;
  for (std::string line; status.ok() && std::getline(std::cin, line);) {
    std::istringstream text(line);
    std::vector<double> command;
    for (double number; text >> number;) command.push_back(number);
    absl::StatusOr<std::string> answer = handle(command);
    if (answer.ok()) {
      std::cout << *answer << std::endl;
    } else {
      status = answer.status();
    }
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "bench: worker: %s\n", status.ToString().c_str());
  return 1;
}

void SleepUntil(double seconds) {
  std::this_thread::sleep_until(
      std::chrono::steady_clock::time_point(std::chrono::duration_cast<std::chrono::nanoseconds>(
          std::chrono::duration<double>(seconds))));
}

}  // namespace larder::bench
