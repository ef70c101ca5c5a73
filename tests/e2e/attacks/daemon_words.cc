#include "tests/e2e/attacks/daemon_words.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string_view>

#include "tests/e2e/support/ctl_process.h"

namespace larder::e2e {
namespace {

// Returns the samples by name with labels, without comments and the HTTP header.
std::map<std::string, double> SamplesOf(const std::string& scrape) {
  std::map<std::string, double> samples;
  std::istringstream lines(scrape);
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.rfind(' ');
    if (!line.starts_with("larder_") || space == std::string::npos) continue;
    samples[line.substr(0, space)] = std::atof(line.c_str() + space);
  }
  return samples;
}

}  // namespace

ResidentBytes BytesBesidePool(pid_t daemon) {
  static const std::regex slab("/memfd:larder-[0-9]+( |$)");
  std::ifstream maps("/proc/" + std::to_string(daemon) + "/smaps");
  ResidentBytes resident;
  uint64_t* counts = nullptr;
  for (std::string line; std::getline(maps, line);) {
    // A mapping's first line begins with its addresses, in lower-case hexadecimal digits; the lines
    // of its fields begin with a capital.
    if (!line.empty() && (std::isdigit(line[0]) != 0 || std::islower(line[0]) != 0)) {
      const bool staging = line.find("/memfd:larder-staging") != std::string::npos;
      counts = staging                         ? &resident.staging
               : std::regex_search(line, slab) ? nullptr
                                               : &resident.own;
    } else if (counts != nullptr && line.starts_with("Rss:")) {
      *counts += std::strtoull(line.c_str() + 4, nullptr, 10) << 10;
    }
  }
  return resident;
}

std::vector<std::string> LinesThatName(const std::string& text, const std::string& before,
                                       const Attackers& who) {
  std::string words = "uid " + std::to_string(who.uid);
  for (const pid_t pid : who.pids) words += "|pid " + std::to_string(pid);
  std::string named = "\\b(" + words + ")\\b";
  // Bystanders without a sideband hold fewer than ten things at a time.
  if (who.unnamed) {
    named +=
        "|callers without a sideband( [0-9][0-9,]*[0-9](, |;|$)|.*(wanted|refused|has no room))";
  }
  const std::regex names(named);
  std::istringstream lines(text.starts_with(before) ? text.substr(before.size()) : text);
  std::vector<std::string> found;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_search(line, names)) found.push_back(line);
  }
  return found;
}

std::vector<std::string> MetricsThatGrew(const std::string& before, const std::string& now) {
  // The name must say it: labels such as result="refused" also count the disk's own work, which no
  // attacker causes.
  static const std::regex speaks(
      "_(refused|overloaded|cut_off|dropped|left_out|invalid_messages|wrong_socket)_total($|\\{)|"
      "sessions_total\\{result=\"refused\"");
  const std::map<std::string, double> old = SamplesOf(before);
  std::vector<std::string> grew;
  for (const auto& [name, value] : SamplesOf(now)) {
    if (!std::regex_search(name, speaks)) continue;
    const auto was = old.find(name);
    const double from = was == old.end() ? 0 : was->second;
    if (value > from) grew.push_back(name + " " + std::to_string(value - from));
  }
  return grew;
}

std::map<std::string, double> SharesHeld(const std::string& scrape) {
  constexpr std::string_view kSample = "larder_share_held{kind=\"";
  std::map<std::string, double> held;
  for (const auto& [name, value] : SamplesOf(scrape)) {
    if (!name.starts_with(kSample)) continue;
    held[name.substr(kSample.size(), name.rfind('"') - kSample.size())] = value;
  }
  return held;
}

std::string PoolText(const std::string& scrape) {
  constexpr std::string_view kSample = "larder_pool_bytes{part=\"";
  std::string text;
  for (const auto& [name, value] : SamplesOf(scrape)) {
    if (!name.starts_with(kSample)) continue;
    if (!text.empty()) text += ", ";
    text += name.substr(kSample.size(), name.rfind('"') - kSample.size()) + " " +
            std::to_string(static_cast<uint64_t>(value) >> 20) + " MiB";
  }
  return text;
}

std::string StatusOf(const std::string& socket_dir) {
  const CtlOutcome outcome = RunCtl({"status"}, {.socket_dir = socket_dir});
  return outcome.code == 0 ? outcome.out : outcome.out + outcome.err;
}

}  // namespace larder::e2e
