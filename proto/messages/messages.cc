#include "proto/messages/messages.h"

namespace larder::wire {

const char* ToString(WriteMode mode) {
  switch (mode) {
    case WriteMode::kMapped:
      return "mapped";
    case WriteMode::kStaged:
      return "staged";
    case WriteMode::kStream:
      return "stream";
  }
  return "?";
}

const char* ToString(ReadMode mode) {
  switch (mode) {
    case ReadMode::kMapped:
      return "mapped";
    case ReadMode::kCopied:
      return "copied";
    case ReadMode::kStream:
      return "stream";
  }
  return "?";
}

const char* ToString(Role role) {
  switch (role) {
    case Role::kScheduler:
      return "scheduler";
    case Role::kWorker:
      return "worker";
    case Role::kBoth:
      return "both";
  }
  return "?";
}

}  // namespace larder::wire
