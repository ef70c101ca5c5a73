#include "server/grpc/method_table.h"

#include <vector>

#include <google/protobuf/descriptor.h>

#include "absl/strings/str_cat.h"
#include "storage/check.h"

namespace larder {
namespace {

template <class Table>
void Append(std::vector<DeclaredMethod>* all) {
  const google::protobuf::ServiceDescriptor* const service =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
          Table::Service::service_full_name());
  LARDER_CHECK(service != nullptr &&
               static_cast<size_t>(service->method_count()) == Table::kSockets.size());
  for (int i = 0; i < service->method_count(); ++i) {
    const std::string& name = service->method(i)->name();
    all->push_back({absl::StrCat("/", service->full_name(), "/", name), name,
                    Table::kSockets[static_cast<size_t>(i)]});
  }
}

}  // namespace

std::span<const DeclaredMethod> DeclaredMethods() {
  static const auto* const all = [] {
    auto* const methods = new std::vector<DeclaredMethod>;
    Append<EngineMethods>(methods);
    Append<CacheMethods>(methods);
    Append<AdminMethods>(methods);
    return methods;
  }();
  return *all;
}

const char* FileNameOf(Socket socket) {
  switch (socket) {
    case Socket::kData:
      return "data.sock";
    case Socket::kControl:
      return "control.sock";
    case Socket::kAdmin:
      return "admin.sock";
  }
  LARDER_CHECK(false);
  return "";
}

}  // namespace larder
