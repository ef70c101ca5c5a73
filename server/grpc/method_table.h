// Which socket file serves which method of the services in proto/larder/v1: declared here only, one
// line per method.
//
// A method of Engine, Cache or Admin without a line does not compile, nor does a line without its
// method.  The services are served at a socket through ServedAt.  ServedAt leaves the methods that
// the table does not declare for that socket to WrongSocket (wrong_socket.h), which refuses a call
// before gRPC decodes its request.  Health and reflection are gRPC's own: health is served at every
// socket, reflection at the sockets whose callers are trusted, control.sock and admin.sock.
//
// The table does not decide which users may open a socket file: the file's owner, group and mode
// do.
// Ownership: none.  Thread-safety: constants; a ServedAt is as thread-safe as its service.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "larder/v1/admin.grpc.pb.h"
#include "larder/v1/cache.grpc.pb.h"
#include "larder/v1/engine.grpc.pb.h"

namespace larder {

// The socket files that gRPC is served at.
enum class Socket : uint8_t {
  kData = 1,     // engines
  kControl = 2,  // routers, schedulers and operators
  kAdmin = 4,    // the operator
};

struct SocketSet {
  uint8_t bits = 0;  // public, so that a set can be an argument of a template

  constexpr SocketSet(Socket one) : bits(static_cast<uint8_t>(one)) {}  // NOLINT: implicit
  [[nodiscard]] constexpr bool Has(Socket one) const {
    return (bits & static_cast<uint8_t>(one)) != 0;
  }
};
constexpr SocketSet operator|(SocketSet a, SocketSet b) {
  a.bits |= b.bits;
  return a;
}

// A line of the table: the method, as its template in the generated code, and the sockets that
// serve it.
template <template <class> class Method, SocketSet kSockets>
struct Line {};

namespace method_table_internal {

// The service with the methods of `Lines`, built as the generated code builds the service with all
// methods.  The two types are the same if the lines are those of the .proto file, in its order.
template <class Base, class... Lines>
struct WithMethods {
  using Type = Base;
};
template <class Base, template <class> class Method, SocketSet kSockets, class... Rest>
struct WithMethods<Base, Line<Method, kSockets>, Rest...> {
  using Type = Method<typename WithMethods<Base, Rest...>::Type>;
};

template <template <class> class Method>
struct Name {};
template <class OneLine>
struct PartsOf;
template <template <class> class Method, SocketSet kSockets>
struct PartsOf<Line<Method, kSockets>> {
  static constexpr SocketSet kValue = kSockets;
  using MethodName = Name<Method>;
};

}  // namespace method_table_internal

template <class Api, class... Lines>
struct MethodTable {
  using Service = Api;
  // The sockets of each method, in the order of the lines.
  static constexpr std::array<SocketSet, sizeof...(Lines)> kSockets = {
      method_table_internal::PartsOf<Lines>::kValue...};
  // True if every method has a line, in the order of the .proto file.
  static constexpr bool kWhole = std::is_same_v<
      typename method_table_internal::WithMethods<typename Api::Service, Lines...>::Type,
      typename Api::CallbackService>;
  // Returns the index of a method, as gRPC numbers the methods of the service.
  template <template <class> class Method>
  static constexpr int IndexOf() {
    constexpr std::array<bool, sizeof...(Lines)> kIs = {
        std::is_same_v<typename method_table_internal::PartsOf<Lines>::MethodName,
                       method_table_internal::Name<Method>>...};
    int i = 0;
    while (!kIs[static_cast<size_t>(i)]) ++i;
    return i;
  }
};

// clang-format off: one line per method

inline constexpr SocketSet kDataAndControl = SocketSet(Socket::kData) | Socket::kControl;

using EngineMethods =
    MethodTable<v1::Engine, Line<v1::Engine::WithCallbackMethod_Attach, Socket::kData>,
                Line<v1::Engine::WithCallbackMethod_StoreBlocks, Socket::kData>,
                Line<v1::Engine::WithCallbackMethod_FetchBlocks, Socket::kData>>;

using CacheMethods = MethodTable<
    v1::Cache, Line<v1::Cache::WithCallbackMethod_Lookup, kDataAndControl>,
    Line<v1::Cache::WithCallbackMethod_ListInstances, kDataAndControl>,
    Line<v1::Cache::WithCallbackMethod_QueryIp, kDataAndControl>,
    Line<v1::Cache::WithCallbackMethod_Pin, kDataAndControl>,    // data: for the caller's own user
    Line<v1::Cache::WithCallbackMethod_Unpin, kDataAndControl>,  // data: for the caller's own user
    Line<v1::Cache::WithCallbackMethod_Prefetch, kDataAndControl>,
    Line<v1::Cache::WithCallbackMethod_Clear, Socket::kControl>,
    Line<v1::Cache::WithCallbackMethod_Move, Socket::kControl>,
    Line<v1::Cache::WithCallbackMethod_Compress, Socket::kControl>,
    Line<v1::Cache::WithCallbackMethod_WatchEvents, Socket::kControl>>;

using AdminMethods =
    MethodTable<v1::Admin, Line<v1::Admin::WithCallbackMethod_Stats, Socket::kAdmin>,
                Line<v1::Admin::WithCallbackMethod_Drain, Socket::kAdmin>,
                Line<v1::Admin::WithCallbackMethod_Verify, Socket::kAdmin>,
                Line<v1::Admin::WithCallbackMethod_Config, Socket::kAdmin>>;

// clang-format on

static_assert(EngineMethods::kWhole,
              "server/grpc/method_table.h: say at which sockets each method of Engine is served");
static_assert(CacheMethods::kWhole,
              "server/grpc/method_table.h: say at which sockets each method of Cache is served");
static_assert(AdminMethods::kWhole,
              "server/grpc/method_table.h: say at which sockets each method of Admin is served");

// The callback service of `Table`, which serves only the methods that the table declares for
// `socket`.
template <class Table>
class ServedAt : public Table::Service::CallbackService {
  static_assert(Table::kWhole);

 protected:
  explicit ServedAt(Socket socket) {
    for (size_t i = 0; i < Table::kSockets.size(); ++i) {
      if (!Table::kSockets[i].Has(socket)) this->MarkMethodGeneric(static_cast<int>(i));
    }
  }
};

// One method of the table, for use at run time.
struct DeclaredMethod {
  std::string path;  // "/larder.v1.Cache/Move"
  std::string name;  // "Move"
  SocketSet sockets;
};
[[nodiscard]] std::span<const DeclaredMethod> DeclaredMethods();

// Returns, for example, "control.sock".
[[nodiscard]] const char* FileNameOf(Socket socket);

}  // namespace larder
