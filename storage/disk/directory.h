// Iterating over a directory without exceptions.  The iterators of std::filesystem throw when
// operator++ fails, even if they were constructed with an error code; ForEachIn returns the error.
#pragma once

#include <filesystem>
#include <system_error>

namespace larder {

// Calls visit(entry) for each entry of the directory, in no particular order.  Returns the first
// error of the file system, after which it visits no more entries.  Iterator: directory_iterator or
// recursive_directory_iterator.
template <class Iterator = std::filesystem::directory_iterator, class Visit>
std::error_code ForEachIn(const std::filesystem::path& directory, Visit visit) {
  std::error_code error;
  for (Iterator it(directory, error), end; !error && it != end; it.increment(error)) visit(*it);
  return error;
}

}  // namespace larder
