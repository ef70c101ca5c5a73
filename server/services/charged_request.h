// Estimates the memory that requests take, and charges long ones to their callers before they are
// parsed.
//
// By default gRPC parses a request before it calls the service, and keeps the message until the
// caller has read the answer: 16 MiB of bytes can become half a GiB, for as long as the caller
// likes.  So the methods of Cache and Engine get bytes from gRPC.  Requests of unary calls, and of
// calls with a stream of answers, are parsed here.  Such a request lives while its method runs; the
// method copies what the call needs later.
//
// A request longer than kSmallRequestBytes is charged for its bytes, once all have arrived, and for
// the parsed message, before it is parsed.  A unary call with a request longer than
// kInlineRequestBytes is answered on separate threads, which take callers in turn: parsing and
// answering the longest requests takes 20 ms and more, and gRPC's few threads serve all calls.
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
#include "server/sessions/session_context.h"

namespace larder {

inline constexpr size_t kSmallRequestBytes = 32 << 10;
inline constexpr size_t kInlineRequestBytes = 128 << 10;

// Returns about how much memory, in bytes, the serialized and the parsed message take together.
// Returns InvalidArgument if the parsed message would take more than a message of this length may
// (ParsedWeightMax).
[[nodiscard]] absl::StatusOr<size_t> MemoryOf(const grpc::ByteBuffer& bytes,
                                              const google::protobuf::Descriptor& type);
// Parses the bytes into *message and frees them.  Returns InvalidArgument if they are not a valid
// message of its type.  REQUIRES: MemoryOf returned OK for them.
[[nodiscard]] absl::Status Parse(grpc::ByteBuffer* bytes, google::protobuf::Message* message);

// Charges a request for its memory (MemoryOf) and parses it.  The ticket is empty if the request is
// at most kSmallRequestBytes long.  Returns ResourceExhausted if the share is full, usually with a
// retry hint in the trailing metadata.  Returns InvalidArgument, and counts it, if the bytes are
// longer than `length_max` or otherwise not valid.
[[nodiscard]] absl::StatusOr<Shares::Ticket> ParseCharged(grpc::CallbackServerContext& context,
                                                          const SessionDeps& deps,
                                                          grpc::ByteBuffer bytes, size_t length_max,
                                                          google::protobuf::Message* request);

// Parses the bytes of a request and has its call finished, now or later.  Returns InvalidArgument
// if the bytes are not a valid message; the call must then not have been finished.
using AnswerBytes = std::function<absl::Status(grpc::ByteBuffer)>;
// Estimates the memory of a request, charges a long one, and calls `answer`: on this thread, or for
// a request longer than kInlineRequestBytes on a thread of `long_requests`.  If the request is
// refused, finishes `call` with an error instead.
void AnswerCharged(UnaryCall& call, const SessionDeps& deps, WorkerPool& long_requests,
                   grpc::ByteBuffer bytes, const google::protobuf::Descriptor& type,
                   AnswerBytes answer);

// Runs `work`, which must finish `call`, on a thread of `long_requests` when it is the caller's
// turn.  `bytes` says how much memory the work takes while it waits.  If too many requests wait, or
// the caller has ended the call by the time of its turn, finishes `call` with an error instead.
void OnLongThread(UnaryCall& call, const SessionDeps& deps, WorkerPool& long_requests, size_t bytes,
                  std::function<void()> work);

// The base class of a service whose requests are charged before they are parsed.  The service's
// constructor must call Charge for each method whose requests are to be charged.
template <class Table>
class ChargedAt : public ServedAt<Table> {
 protected:
  ChargedAt(Socket socket, const SessionDeps& deps, WorkerPool& long_requests)
      : ServedAt<Table>(socket), socket_(socket), deps_(deps), long_requests_(long_requests) {}

  // Serves a unary method by `method`, which must finish its call, now or later.
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
  // Serves a method with a stream of answers by `method`; its request has at most `length_max`
  // bytes.
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
  // Takes the bytes away from gRPC, which would keep them until the call is done.
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
