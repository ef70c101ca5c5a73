// LARDER_RETURN_IF_ERROR and LARDER_ASSIGN_OR_RETURN return an error to the caller.
//
//   LARDER_RETURN_IF_ERROR(file.Sync());
//   LARDER_ASSIGN_OR_RETURN(const Header header, ReadHeader(file));
//
// They are for functions that return a type to which an absl::Status converts: absl::Status, an
// absl::StatusOr, and others.  A function that returns another type, or must do something else with
// the error, writes its own `if`.
// Limits: no argument may have a comma outside parentheses; write `auto` for a type that has one.
// LARDER_ASSIGN_OR_RETURN is several statements, so it needs braces after `if`, `else` and loops.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Evaluates `expression`, an absl::Status, and returns it from the enclosing function unless it is
// OK.
#define LARDER_RETURN_IF_ERROR(expression)                                                    \
  do {                                                                                        \
    if (absl::Status larder_status = (expression); !larder_status.ok()) return larder_status; \
  } while (false)

// Evaluates `expression`, an absl::StatusOr.  If it is an error, returns its status from the
// enclosing function; otherwise moves its value into `declaration`, a new variable or an existing
// one.
#define LARDER_ASSIGN_OR_RETURN(declaration, expression) \
  LARDER_ASSIGN_OR_RETURN_AS(LARDER_STATUS_NAME(__LINE__), declaration, expression)

#define LARDER_ASSIGN_OR_RETURN_AS(status_or, declaration, expression) \
  auto status_or = (expression);                                       \
  if (!status_or.ok()) return std::move(status_or).status();           \
  declaration = *std::move(status_or)
#define LARDER_STATUS_NAME(line) LARDER_STATUS_NAME_OF(line)
#define LARDER_STATUS_NAME_OF(line) larder_status_or_##line
