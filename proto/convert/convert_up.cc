// Up: the messages from the client to the daemon.
#include "proto/convert/convert.h"
#include "proto/convert/convert_field.h"

namespace larder::wire {
namespace {

static_assert(kFeatureTiers == v1::FEATURE_BIT_TIERS);
static_assert(kFeatureCodecs == v1::FEATURE_BIT_CODECS);
static_assert(kFeatureCopiedReads == v1::FEATURE_BIT_COPIED_READS);

void DecodeHello(const Field& at, const v1::Hello& in, Hello* out) {
  DecodeString(at("engine_id"), in.engine_id(), {1, kStringBytesMax}, &out->engine_id);
  DecodeEnum(at("role"), in.role(), &out->role);
  out->rank = in.rank();
  DecodeEnum(at("write_mode"), in.write_mode(), &out->write_mode);
  out->feature_bits = in.feature_bits();
  DecodeString(at("tenant"), in.tenant(), {0, kTenantBytesMax}, &out->tenant);
  DecodeString(at("client"), in.client(), kAnyString, &out->client);
  if (in.has_device()) DecodeDevice(at("device"), in.device(), &out->device);
}

void EncodeHello(const Hello& in, v1::Hello* out) {
  out->set_engine_id(in.engine_id);
  out->set_role(static_cast<v1::Role>(in.role));
  out->set_rank(in.rank);
  out->set_write_mode(static_cast<v1::WriteMode>(in.write_mode));
  out->set_feature_bits(in.feature_bits);
  out->set_tenant(in.tenant);
  out->set_client(in.client);
  if (!in.device.kind.empty()) EncodeDevice(in.device, out->mutable_device());
}

void DecodeRegister(const Field& at, const v1::Register& in, Register* out) {
  DecodeRequestId(at("id"), in.id(), &out->id);
  DecodeEach(at("contents"), in.contents(), kRegisterContentsMax, DecodeContent, &out->contents);
  DecodeEach(at("variants"), in.variants(), kVariantsMax, DecodeVariant, &out->variants);
}

void EncodeRegister(const Register& in, v1::Register* out) {
  out->set_id(in.id);
  EncodeEach<v1::Content, ContentSpec>(in.contents, Encode, out->mutable_contents());
  EncodeEach<v1::Variant, VariantSpec>(in.variants, Encode, out->mutable_variants());
}

void DecodeRevokeAck(const Field& at, const v1::RevokeAck& in, RevokeAck* out) {
  DecodeIds(at("lease_ids"), in.lease_ids(), &out->leases);
  DecodeIds(at("reservation_ids"), in.reservation_ids(), &out->reservations);
}

void EncodeRevokeAck(const RevokeAck& in, v1::RevokeAck* out) {
  EncodeIds(in.leases, out->mutable_lease_ids());
  EncodeIds(in.reservations, out->mutable_reservation_ids());
}

void DecodeAbort(const Field& at, const v1::Abort& in, Abort* out) {
  out->reservation = ReservationId{in.reservation_id()};
  if (!CheckCount(at("extents"), in.extents_size(), kKeysMax)) return;
  out->extents.assign(in.extents().begin(), in.extents().end());
}

void EncodeAbort(const Abort& in, v1::Abort* out) {
  out->set_reservation_id(in.reservation.value);
  out->mutable_extents()->Add(in.extents.begin(), in.extents.end());
}

void DecodeCancel(const Field& at, const v1::CancelAcquire& in, uint64_t* out) {
  DecodeRequestId(at("id"), in.id(), out);
}

void EncodeCancel(const uint64_t& in, v1::CancelAcquire* out) { out->set_id(in); }

void DecodePublishBlock(const Field& at, const v1::PublishBlock& in, PublishBlock* out) {
  out->extent = in.extent();
  DecodeDigest(at("digest"), in.digest(), &out->digest);
  DecodeDigest(at("parent"), in.parent(), &out->parent);
  DecodeBlockTokens(at("tokens"), in.tokens(), &out->tokens);
  DecodeTable(at("segments"), in.segments(), &out->segments);
  out->staging_offset = in.staging_offset();
  out->staging_id = in.staging_id();
  if (!in.content_id().empty()) DecodeDigest(at("content_id"), in.content_id(), &out->content);
}

void EncodePublishBlock(const PublishBlock& in, v1::PublishBlock* out) {
  out->set_extent(in.extent);
  EncodeDigest(in.digest, out->mutable_digest());
  EncodeDigest(in.parent, out->mutable_parent());
  out->mutable_tokens()->Add(in.tokens.begin(), in.tokens.end());
  Encode(in.segments, out->mutable_segments());
  out->set_staging_offset(in.staging_offset);
  out->set_staging_id(in.staging_id);
  if (in.content != Digest()) EncodeDigest(in.content, out->mutable_content_id());
}

void DecodePublish(const Field& at, const v1::Publish& in, Publish* out) {
  DecodeRequestId(at("id"), in.id(), &out->id);
  out->reservation = ReservationId{in.reservation_id()};
  out->variant = in.variant();
  DecodeEach(at("blocks"), in.blocks(), kKeysMax, DecodePublishBlock, &out->blocks);
}

void EncodePublish(const Publish& in, v1::Publish* out) {
  out->set_id(in.id);
  out->set_reservation_id(in.reservation.value);
  out->set_variant(in.variant);
  EncodeEach(in.blocks, EncodePublishBlock, out->mutable_blocks());
}

void DecodeReserve(const Field& at, const v1::Reserve& in, Reserve* out) {
  DecodeRequestId(at("id"), in.id(), &out->id);
  out->deadline_ms = DecodeDeadlineMs(in.deadline_ms());
  if (!CheckCount(at("bytes"), in.bytes_size(), kKeysMax)) return;
  out->bytes.resize(static_cast<size_t>(in.bytes_size()));
  for (int i = 0; i < in.bytes_size(); ++i) {
    if (in.bytes(i) == 0)
      return at("bytes")[i].Refuse("a block of 0 bytes; at least 1 is required");
    out->bytes[static_cast<size_t>(i)] = ByteCount(in.bytes(i));
  }
  out->variant = in.variant();
  DecodeDigests(at("digests"), in.digests(), kKeysMax, &out->digests);
  if (at.ok() && !out->digests.empty() && out->digests.size() != out->bytes.size()) {
    at("digests").Refuse(out->digests.size(), " names for ", out->bytes.size(), " blocks");
  }
}

void EncodeReserve(const Reserve& in, v1::Reserve* out) {
  out->set_id(in.id);
  out->mutable_bytes()->Reserve(static_cast<int>(in.bytes.size()));
  for (const ByteCount bytes : in.bytes) out->mutable_bytes()->AddAlreadyReserved(bytes.value());
  out->set_deadline_ms(in.deadline_ms);
  out->set_variant(in.variant);
  EncodeDigests(in.digests, out->mutable_digests());
}

void DecodeAcquire(const Field& at, const v1::Acquire& in, Acquire* out) {
  DecodeRequestId(at("id"), in.id(), &out->id);
  out->variant = in.variant();
  DecodeDigests(at("digests"), in.digests(), kKeysMax, &out->digests);
  out->first_layer = in.first_layer();
  out->layers = in.layers();
  out->deadline_ms = DecodeDeadlineMs(in.deadline_ms());
  out->remaining_bytes = in.remaining_bytes();
  if (in.accepted_codecs().empty()) {
    out->accepted_codecs.assign(1, Codec::kIdentity);
  } else {
    DecodeEnums(at("accepted_codecs"), in.accepted_codecs(), v1::Codec_MAX, &out->accepted_codecs);
  }
  DecodeEnum(at("what"), in.what(), &out->what);
  out->want_tables = in.want_tables();
  out->promised_lease = LeaseId{in.promised_lease()};
  out->staging_id = in.staging_id();
  out->staging_offset = in.staging_offset();
  out->staging_bytes = in.staging_bytes();
}

void EncodeAcquire(const Acquire& in, v1::Acquire* out) {
  out->set_id(in.id);
  out->set_variant(in.variant);
  EncodeDigests(in.digests, out->mutable_digests());
  out->set_first_layer(in.first_layer);
  out->set_layers(in.layers);
  out->set_deadline_ms(in.deadline_ms);
  out->set_remaining_bytes(in.remaining_bytes);
  if (in.accepted_codecs.size() != 1 || in.accepted_codecs[0] != Codec::kIdentity) {
    EncodeEnums(in.accepted_codecs, out->mutable_accepted_codecs());
  }
  out->set_what(static_cast<v1::AcquireWhat>(in.what));
  out->set_want_tables(in.want_tables);
  out->set_promised_lease(in.promised_lease.value);
  out->set_staging_id(in.staging_id);
  out->set_staging_offset(in.staging_offset);
  out->set_staging_bytes(in.staging_bytes);
}

void DecodePromise(const Field& at, const v1::Promise& in, Promise* out) {
  DecodeRequestId(at("id"), in.id(), &out->id);
  if (!CheckCount(at("variants"), in.variants_size(), kVariantsMax)) return;
  out->variants.assign(in.variants().begin(), in.variants().end());
  DecodeDigests(at("digests"), in.digests(), kLookupDigestsMax, &out->digests);
  out->first_token = in.first_token();
  out->deadline_ms = DecodeDeadlineMs(in.deadline_ms());
  out->remaining_bytes = in.remaining_bytes();
  out->promise = LeaseId{in.promise_id()};
}

void EncodePromise(const Promise& in, v1::Promise* out) {
  out->set_id(in.id);
  out->mutable_variants()->Add(in.variants.begin(), in.variants.end());
  EncodeDigests(in.digests, out->mutable_digests());
  out->set_first_token(in.first_token);
  out->set_deadline_ms(in.deadline_ms);
  out->set_remaining_bytes(in.remaining_bytes);
  out->set_promise_id(in.promise.value);
}

void DecodeDirectiveDone(const Field& at, const v1::DirectiveDone& in, DirectiveDone* out) {
  out->directive_id = in.directive_id();
  DecodeEnums(at("status"), in.status(), kKeysMax, &out->status);
}

void EncodeDirectiveDone(const DirectiveDone& in, v1::DirectiveDone* out) {
  out->set_directive_id(in.directive_id);
  EncodeEnums(in.status, out->mutable_status());
}

// The tokens are those of the stored blocks: the same number for each block, a multiple of 16, or
// none at all.
void DecodeDeviceTokens(const Field& at, const v1::DeviceBlocks& in, DeviceBlocks* out) {
  const auto count = static_cast<size_t>(in.tokens_size());
  if (!CheckCount(at, in.tokens_size(), kLookupTokensMax)) return;
  if (count != 0 && (out->stored.empty() || count % (out->stored.size() * kStepTokens) != 0)) {
    return at.Refuse(count, " tokens for ", out->stored.size(),
                     " stored blocks; each block needs the same number, a multiple of ",
                     kStepTokens);
  }
  out->tokens.assign(in.tokens().begin(), in.tokens().end());
}

void DecodeDeviceBlocks(const Field& at, const v1::DeviceBlocks& in, DeviceBlocks* out) {
  out->variant = in.variant();
  DecodeDigests(at("stored"), in.stored(), kKeysMax, &out->stored);
  DecodeDigests(at("removed"), in.removed(), kKeysMax, &out->removed);
  out->cleared = in.cleared();
  DecodeDigest(at("parent"), in.parent(), &out->parent);
  DecodeDeviceTokens(at("tokens"), in, out);
}

void EncodeDeviceBlocks(const DeviceBlocks& in, v1::DeviceBlocks* out) {
  out->set_variant(in.variant);
  EncodeDigests(in.stored, out->mutable_stored());
  EncodeDigests(in.removed, out->mutable_removed());
  out->set_cleared(in.cleared);
  if (in.parent) EncodeDigest(*in.parent, out->mutable_parent());
  out->mutable_tokens()->Add(in.tokens.begin(), in.tokens.end());
}

void DecodeDamageReport(const Field& at, const v1::DamageReport& in, DamageReport* out) {
  out->variant = in.variant();
  DecodeDigests(at("digests"), in.digests(), kKeysMax, &out->digests);
}

void EncodeDamageReport(const DamageReport& in, v1::DamageReport* out) {
  out->set_variant(in.variant);
  EncodeDigests(in.digests, out->mutable_digests());
}

}  // namespace

absl::Status Decode(const v1::Up& in, Up* out) {
  absl::Status error;
  const Field at(&error);
  out->hello.reset();
  if (in.has_hello()) DecodeHello(at("hello"), in.hello(), &out->hello.emplace());
  DecodeEach(at("registers"), in.registers(), kPartsMax, DecodeRegister, &out->registers);
  DecodeIds(at("release")("lease_ids"), in.release().lease_ids(), &out->releases);
  out->revoke_ack.reset();
  if (in.has_revoke_ack())
    DecodeRevokeAck(at("revoke_ack"), in.revoke_ack(), &out->revoke_ack.emplace());
  DecodeEach(at("aborts"), in.aborts(), kPartsMax, DecodeAbort, &out->aborts);
  DecodeEach(at("cancels"), in.cancels(), kPartsMax, DecodeCancel, &out->cancels);
  DecodeEach(at("publishes"), in.publishes(), kPartsMax, DecodePublish, &out->publishes);
  DecodeEach(at("reserves"), in.reserves(), kPartsMax, DecodeReserve, &out->reserves);
  DecodeEach(at("acquires"), in.acquires(), kPartsMax, DecodeAcquire, &out->acquires);
  DecodeEach(at("directives_done"), in.directives_done(), kPartsMax, DecodeDirectiveDone,
             &out->directives_done);
  DecodeEach(at("device_blocks"), in.device_blocks(), kPartsMax, DecodeDeviceBlocks,
             &out->device_blocks);
  DecodeEach(at("damaged"), in.damaged(), kPartsMax, DecodeDamageReport, &out->damaged);
  out->bye = in.bye();
  DecodeEach(at("promises"), in.promises(), kPartsMax, DecodePromise, &out->promises);
  return error;
}

void Encode(const Up& in, v1::Up* out) {
  out->Clear();
  if (in.hello) EncodeHello(*in.hello, out->mutable_hello());
  EncodeEach(in.registers, EncodeRegister, out->mutable_registers());
  if (!in.releases.empty()) EncodeIds(in.releases, out->mutable_release()->mutable_lease_ids());
  if (in.revoke_ack) EncodeRevokeAck(*in.revoke_ack, out->mutable_revoke_ack());
  EncodeEach(in.aborts, EncodeAbort, out->mutable_aborts());
  EncodeEach(in.cancels, EncodeCancel, out->mutable_cancels());
  EncodeEach(in.publishes, EncodePublish, out->mutable_publishes());
  EncodeEach(in.reserves, EncodeReserve, out->mutable_reserves());
  EncodeEach(in.acquires, EncodeAcquire, out->mutable_acquires());
  EncodeEach(in.directives_done, EncodeDirectiveDone, out->mutable_directives_done());
  EncodeEach(in.device_blocks, EncodeDeviceBlocks, out->mutable_device_blocks());
  EncodeEach(in.damaged, EncodeDamageReport, out->mutable_damaged());
  out->set_bye(in.bye);
  EncodeEach(in.promises, EncodePromise, out->mutable_promises());
}

}  // namespace larder::wire
