// Requests that are weighed, charged to their callers, and only then parsed.
//
// gRPC parses a request before its service hears of it, and keeps it until the caller has read the
// answer: 16 MiB can become half a GiB, for as long as the caller likes.  So gRPC hands the methods
// of data.sock and control.sock bytes, and each is parsed here.  The parsed request lives while its
// method runs; what the call needs later, the method copies.
//
// Ownership: none.  Thread-safety: any thread.
#pragma once

#include <cstddef>

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "absl/status/statusor.h"
#include "server/services/caller.h"
#include "server/services/method_table.h"
#include "server/services/refused_call.h"
#include "server/session.h"
#include "server/shares.h"

namespace larder {

// What the bytes of a message, and the message that they say, take of memory together.
// InvalidArgument: the message would take many times its length.
[[nodiscard]] absl::StatusOr<size_t> MemoryOf(const grpc::ByteBuffer& bytes,
                                              const google::protobuf::Descriptor& type);
// InvalidArgument: it is no such message.  REQUIRES: MemoryOf was asked, and answered.
[[nodiscard]] absl::Status Parse(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);

// Weighs, charges and parses a request.  The ticket is the charge, empty for a short request, which
// is not charged.  ResourceExhausted, with the hint in the trailing metadata: there is no room.
[[nodiscard]] absl::StatusOr<Shares::Ticket> ParseCharged(grpc::CallbackServerContext& context,
                                                          const SessionDeps& deps,
                                                          const grpc::ByteBuffer& bytes,
                                                          google::protobuf::Message* request);

// A service with such requests.  Each method that the table declares for `socket` is handed to
// Charge in the constructor.
template <class Table>
class ChargedAt : public ServedAt<Table> {
 protected:
  ChargedAt(Socket socket, const SessionDeps& deps)
      : ServedAt<Table>(socket), socket_(socket), deps_(deps) {}

  template <template <class> class Method, class Service, class Request, class Reply>
  void Charge(grpc::ServerUnaryReactor* (Service::*method)(grpc::CallbackServerContext*,
                                                           const Request*, Reply*)) {
    auto* const service = static_cast<Service*>(this);
    Mark<Method>([=, this] {
      return new grpc::internal::CallbackUnaryHandler<grpc::ByteBuffer, Reply>(
          [=, this](grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
                    Reply* reply) {
            return Call<grpc::ServerUnaryReactor, Request>(
                context, bytes, [=](Request* r) { return (service->*method)(context, r, reply); });
          });
    });
  }
  template <template <class> class Method, class Service, class Request, class Reply>
  void Charge(grpc::ServerWriteReactor<Reply>* (Service::*method)(grpc::CallbackServerContext*,
                                                                  const Request*)) {
    auto* const service = static_cast<Service*>(this);
    Mark<Method>([=, this] {
      return new grpc::internal::CallbackServerStreamingHandler<grpc::ByteBuffer, Reply>(
          [=, this](grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) {
            return Call<grpc::ServerWriteReactor<Reply>, Request>(
                context, bytes, [=](Request* r) { return (service->*method)(context, r); });
          });
    });
  }

 private:
  template <template <class> class Method, class MakeHandler>
  void Mark(MakeHandler make) {
    constexpr int kIndex = Table::template IndexOf<Method>();
    if (Table::kSockets[static_cast<size_t>(kIndex)].Has(socket_))
      this->MarkMethodRawCallback(kIndex, make());
  }
  template <class Reactor, class Request, class Handle>
  Reactor* Call(grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
                Handle handle) {
    Request request;
    const absl::StatusOr<Shares::Ticket> charge = ParseCharged(*context, deps_, *bytes, &request);
    if (!charge.ok()) return new RefusedCall<Reactor>(charge.status());
    // gRPC made them, keeps them until the call is done, and reads them no more.
    const_cast<grpc::ByteBuffer*>(bytes)->Clear();
    return handle(&request);
  }

  const Socket socket_;
  const SessionDeps& deps_;
};

}  // namespace larder
