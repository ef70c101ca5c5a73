// The reactor of a call that is refused at once.
//
// Ownership: deletes itself when gRPC is done with it.
#pragma once

#include "absl/status/status.h"
#include "server/services/rpc_status.h"

namespace larder {

// `Reactor` is one of gRPC's server reactors.
template <class Reactor>
class RefusedCall final : public Reactor {
 public:
  explicit RefusedCall(const absl::Status& why) { this->Finish(ToRpcStatus(why)); }
  void OnDone() override { delete this; }
};

}  // namespace larder
