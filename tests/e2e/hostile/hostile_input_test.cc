// Calls that break the contract.  Each is refused with a message that names the field, and is
// counted.
#include "gmock/gmock.h"
#include "tests/e2e/support/hostile_fixture.h"

namespace larder::e2e {
namespace {

using ::testing::HasSubstr;

grpc::Status Lookup(const std::shared_ptr<grpc::Channel>& channel, const v1::LookupRequest& request,
                    v1::LookupReply* reply) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  return v1::Cache::NewStub(channel)->Lookup(&context, request, reply);
}

class HostileCall : public HostileTest {
 protected:
  // Expects INVALID_ARGUMENT with a message that contains `words`, and that the call is counted
  // once.
  void ExpectInvalid(const v1::LookupRequest& request, const std::string& words) {
    const uint64_t before = Invalid();
    v1::LookupReply reply;
    const grpc::Status status = Lookup(channel_, request, &reply);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(words));
    EXPECT_EQ(Invalid(), before + 1);
  }
  [[nodiscard]] v1::LookupRequest Question() const {
    v1::LookupRequest request;
    wire::Encode(maker_.content, request.mutable_content());
    return request;
  }
};

TEST_F(HostileCall, UnknownContentHasNoInstances) {
  v1::LookupRequest request = Question();
  request.mutable_content()->set_model("a model without a session");
  request.set_digests(std::string(32, 'x'));
  v1::LookupReply reply;
  ASSERT_TRUE(Lookup(channel_, request, &reply).ok());
  EXPECT_EQ(reply.instances_size(), 0);
  EXPECT_FALSE(reply.boot_id().empty());
}

TEST_F(HostileCall, ALookupBeyondALimitIsRefused) {
  v1::LookupRequest request = Question();
  ExpectInvalid(request, "tokens");
  request.set_digests(std::string(16, 'x'));
  request.add_tokens(1);
  ExpectInvalid(request, "digests");
  request.clear_tokens();
  request.set_digests(std::string(17, 'x'));
  ExpectInvalid(request, "digests: 17 bytes");
  request.set_digests(std::string(8193 * 16, 'x'));
  ExpectInvalid(request, "digests");
  request.clear_digests();
  for (uint32_t i = 0; i <= wire::kLookupTokensMax; ++i) request.add_tokens(i);
  ExpectInvalid(request, "tokens");
  request = Question();
  request.set_digests(std::string(16, 'x'));
  request.clear_content();
  ExpectInvalid(request, "content");
}

TEST_F(HostileCall, HugeStringsAreRefused) {
  v1::LookupRequest request = Question();
  request.set_digests(std::string(16, 'x'));
  request.mutable_content()->set_model(std::string(257, 'm'));
  ExpectInvalid(request, "content.model");
  request.mutable_content()->set_model(std::string(8 << 20, 'm'));
  ExpectInvalid(request, "content.model");
  request.mutable_content()->set_model("m");
  request.mutable_content()->set_salt(std::string(65, 's'));
  ExpectInvalid(request, "content.salt");
  request.mutable_content()->clear_salt();
  request.set_engine_id(std::string(257, 'e'));
  ExpectInvalid(request, "engine_id");
}

TEST_F(HostileCall, AMessageOverTheLimitIsRefused) {
  v1::LookupRequest request = Question();
  request.set_digests(std::string((16 << 20) + 16, 'x'));
  v1::LookupReply reply;
  const grpc::Status status = Lookup(channel_, request, &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("16777216"))
      << "the message does not name the limit";
}

TEST_F(HostileCall, OtherTenantsAreRefused) {
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(20);
  const auto refused = [](const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr("neighbour"));
  };
  v1::LookupRequest request = Question();
  request.set_tenant("neighbour");
  request.set_digests(std::string(16, 'x'));
  v1::LookupReply reply;
  refused(Lookup(channel_, request, &reply));
  {
    grpc::ClientContext context;
    context.set_deadline(deadline);
    v1::ListInstancesRequest list;
    list.set_tenant("neighbour");
    v1::ListInstancesReply instances;
    refused(v1::Cache::NewStub(channel_)->ListInstances(&context, list, &instances));
  }
  {
    grpc::ClientContext context;
    context.set_deadline(deadline);
    v1::QueryIpRequest query;
    query.set_tenant("neighbour");
    query.set_engine_id("raw");
    v1::QueryIpReply addresses;
    refused(v1::Cache::NewStub(channel_)->QueryIp(&context, query, &addresses));
  }
  RawSession session(channel_, {.hello = false});
  v1::Up up;
  up.mutable_hello()->set_engine_id("raw");
  up.mutable_hello()->set_role(v1::ROLE_BOTH);
  up.mutable_hello()->set_write_mode(v1::WRITE_MODE_STREAM);
  up.mutable_hello()->set_tenant("neighbour");
  session.Send(up);
  refused(session.End());
}

TEST_F(HostileCall, QueryIpOfAnUnknownEngineIsRefused) {
  grpc::ClientContext context;
  v1::QueryIpRequest query;
  query.set_engine_id(std::string(1000, 'e'));
  v1::QueryIpReply addresses;
  const grpc::Status status = v1::Cache::NewStub(channel_)->QueryIp(&context, query, &addresses);
  EXPECT_THAT(status.error_code(),
              ::testing::AnyOf(grpc::StatusCode::NOT_FOUND, grpc::StatusCode::INVALID_ARGUMENT));
}

}  // namespace
}  // namespace larder::e2e
