#include "server/grpc/wrong_socket.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "storage/check.h"

namespace larder {
namespace {

constexpr size_t kShownMax = 256;  // bytes of a path, which the client chose

const char* UsersOf(Socket socket) {
  switch (socket) {
    case Socket::kData:
      return "engines";
    case Socket::kControl:
      return "routers, schedulers and operators";
    case Socket::kAdmin:
      return "the operator";
  }
  LARDER_CHECK(false);
  return "";
}

class Refused final : public grpc::ServerGenericBidiReactor {
 public:
  explicit Refused(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::Status WrongSocket::Answer(const std::string& path) const {
  const std::span<const DeclaredMethod> methods = DeclaredMethods();
  const auto method = std::ranges::find(methods, path, &DeclaredMethod::path);
  if (method == methods.end()) {
    return {grpc::StatusCode::UNIMPLEMENTED,
            absl::StrCat("larderd has no method ", absl::CHexEscape(path.substr(0, kShownMax)),
                         ": it is older or newer than this client")};
  }
  for (const Socket there : {Socket::kData, Socket::kControl, Socket::kAdmin}) {
    if (!method->sockets.Has(there)) continue;
    return {
        grpc::StatusCode::PERMISSION_DENIED,
        absl::StrCat(method->name, " is not served at ", FileNameOf(here_), " but at ", folder_,
                     "/", FileNameOf(there), ", which is for ", UsersOf(there), ": call it there")};
  }
  LARDER_CHECK(false);  // every line has at least one socket
  return {};
}

grpc::ServerGenericBidiReactor* WrongSocket::CreateReactor(
    grpc::GenericCallbackServerContext* context) {
  const grpc::Status status = Answer(context->method());
  if (status.error_code() == grpc::StatusCode::PERMISSION_DENIED) ++counters_.calls_at_wrong_socket;
  return new Refused(status);
}

}  // namespace larder
