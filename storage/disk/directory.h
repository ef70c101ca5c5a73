// What lies in a directory.  std::filesystem's iterators throw where they fail on the way, whatever
// they were made with; these answer with an error, or with what they saw.
#pragma once

#include <filesystem>
#include <system_error>

namespace larder {

// Calls visit(entry) for each, in no order; an error ends it.  Iterator: directory_iterator or
// recursive_directory_iterator.
template <class Iterator = std::filesystem::directory_iterator, class Visit>
std::error_code ForEachIn(const std::filesystem::path& directory, Visit visit) {
  std::error_code error;
  for (Iterator it(directory, error), end; !error && it != end; it.increment(error)) visit(*it);
  return error;
}

}  // namespace larder
