// Requests that are weighed, charged to their callers, and only then parsed.
//
// gRPC parses a request before its service hears of it, and keeps it until the caller has read the
// answer: 16 MiB can become half a GiB, for as long as the caller likes.  So gRPC hands the methods
// of data.sock and control.sock bytes, and each is parsed here.  The parsed request lives while its
// method runs; what the call needs later, the method copies.
//
// A request beyond kSmallRequestBytes is charged for its bytes, once they have all come, and for
// what they say, before they are parsed.  A single call of one beyond kInlineRequestBytes is
// answered by threads of their own, which take callers in turn: to weigh and parse the longest, and
// to answer it, takes a thread 20 ms and more, and gRPC's few threads serve all.
//
// Ownership: none.  Thread-safety: any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "absl/status/statusor.h"
#include "proto/messages/messages.h"
#include "server/grpc/method_table.h"
#include "server/runtime/shares.h"
#include "server/runtime/worker_pool.h"
#include "server/services/caller.h"
#include "server/services/refused_call.h"
#include "server/sessions/session.h"

namespace larder {

inline constexpr size_t kSmallRequestBytes = 32 << 10;
inline constexpr size_t kInlineRequestBytes = 128 << 10;

// What the bytes of a message, and the message that they say, take of memory together.
// InvalidArgument: the message would take many times its length.
[[nodiscard]] absl::StatusOr<size_t> MemoryOf(const grpc::ByteBuffer& bytes,
                                              const google::protobuf::Descriptor& type);
// Lets go of the bytes.  InvalidArgument: they are no such message.  REQUIRES: MemoryOf was asked,
// and answered.
[[nodiscard]] absl::Status Parse(grpc::ByteBuffer* bytes, google::protobuf::Message* message);

// Weighs, charges and parses a request at once.  The ticket is empty for one that is not long.
// ResourceExhausted, with the hint in the trailing metadata: there is no room.  InvalidArgument,
// which is counted: it is no such message, or longer than `length_max`.
[[nodiscard]] absl::StatusOr<Shares::Ticket> ParseCharged(grpc::CallbackServerContext& context,
                                                          const SessionDeps& deps,
                                                          grpc::ByteBuffer bytes, size_t length_max,
                                                          google::protobuf::Message* request);

// Finishes `call`, or has `answer` parse the bytes and finish it: now, or on one of
// `long_requests`.  `answer` returns InvalidArgument, and has not finished the call, where they are
// no such message.
using AnswerBytes = std::function<absl::Status(grpc::ByteBuffer)>;
void AnswerCharged(UnaryCall& call, const SessionDeps& deps, WorkerPool& long_requests,
                   grpc::ByteBuffer bytes, const google::protobuf::Descriptor& type,
                   AnswerBytes answer);

// Has one of `long_requests` do `work`, which finishes `call`, when it is the caller's turn.
// `bytes`: what the work keeps while it waits.  Where too much waits already, or the caller has
// gone by then, the call is finished with that.
void OnLongThread(UnaryCall& call, const SessionDeps& deps, WorkerPool& long_requests, size_t bytes,
                  std::function<void()> work);

// A service with such requests.  Each method that the table declares for `socket` is handed to
// Charge in the constructor.
template <class Table>
class ChargedAt : public ServedAt<Table> {
 protected:
  ChargedAt(Socket socket, const SessionDeps& deps, WorkerPool& long_requests)
      : ServedAt<Table>(socket), socket_(socket), deps_(deps), long_requests_(long_requests) {}

  // A single call: the method finishes it, now or later.
  template <template <class> class Method, class Service, class Request, class Reply>
  void Charge(void (Service::*method)(UnaryCall&, const Request&, Reply*)) {
    auto* const service = static_cast<Service*>(this);
    Mark<Method>(new grpc::internal::CallbackUnaryHandler<grpc::ByteBuffer, Reply>(
        [=, this](grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
                  Reply* reply) {
          auto* const call = new UnaryCall(*context, *reply, deps_);
          AnswerCharged(*call, deps_, long_requests_, Take(bytes), *Request::descriptor(),
                        [=](grpc::ByteBuffer taken) {
                          Request request;
                          absl::Status status = Parse(&taken, &request);
                          if (status.ok()) (service->*method)(*call, request, reply);
                          return status;
                        });
          return call;
        }));
  }
  // A call with a stream of answers, of which no request is longer than `length_max`.
  template <template <class> class Method, class Service, class Request, class Reply>
  void Charge(grpc::ServerWriteReactor<Reply>* (Service::*method)(grpc::CallbackServerContext*,
                                                                  const Request*),
              size_t length_max = wire::kMessageBytesMax) {
    auto* const service = static_cast<Service*>(this);
    Mark<Method>(new grpc::internal::CallbackServerStreamingHandler<grpc::ByteBuffer, Reply>(
        [=, this](grpc::CallbackServerContext* context,
                  const grpc::ByteBuffer* bytes) -> grpc::ServerWriteReactor<Reply>* {
          Request request;
          const absl::StatusOr<Shares::Ticket> charge =
              ParseCharged(*context, deps_, Take(bytes), length_max, &request);
          if (charge.ok()) return (service->*method)(context, &request);
          return new RefusedCall<grpc::ServerWriteReactor<Reply>>(charge.status());
        }));
  }

 private:
  template <template <class> class Method>
  void Mark(grpc::internal::MethodHandler* handler) {
    constexpr int kIndex = Table::template IndexOf<Method>();
    const std::unique_ptr<grpc::internal::MethodHandler> unused(
        Table::kSockets[static_cast<size_t>(kIndex)].Has(socket_) ? nullptr : handler);
    if (!unused) this->MarkMethodRawCallback(kIndex, handler);
  }
  // gRPC made them, and would keep them until the call is done.
  static grpc::ByteBuffer Take(const grpc::ByteBuffer* bytes) {
    grpc::ByteBuffer taken;
    taken.Swap(const_cast<grpc::ByteBuffer*>(bytes));
    return taken;
  }

  const Socket socket_;
  const SessionDeps& deps_;
  WorkerPool& long_requests_;
};

}  // namespace larder
