// Session: the public API over SessionCore and the transports.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/api/session_impl.h"
#include "client/session/stoppable_wait.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

// A daemon that hangs must not keep an engine from ending.
constexpr std::chrono::milliseconds kCloseDeadline{2'000};

absl::Status StatusOf(BlockStatus status, const std::string& message) {
  const std::string text =
      message.empty() ? absl::StrCat("the daemon answered ", ToString(status)) : message;
  switch (status) {
    case BlockStatus::kOk:
      return absl::OkStatus();
    case BlockStatus::kFull:
      return absl::ResourceExhaustedError(text);
    case BlockStatus::kInvalid:
      return absl::InvalidArgumentError(text);
    case BlockStatus::kCancelled:
    case BlockStatus::kUnsupported:
      return absl::UnavailableError(text);
    default:
      return absl::InternalError(text);
  }
}

absl::Status CheckSizes(std::span<const ByteCount> bytes, ByteCount slab_bytes) {
  LARDER_RETURN_IF_ERROR(CheckBatch(bytes.size()));
  for (const ByteCount one : bytes) {
    if (one.value() > 0 && one <= slab_bytes) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("an extent must have 1 to ", slab_bytes.value(), " bytes, not ", one.value()));
  }
  return absl::OkStatus();
}

// Once ReportDevice has sent more than this without an answer, it waits for one before it sends
// more.
constexpr ByteCount kReportAtOnce = MiB(4);

absl::Status CheckReport(const DeviceReport& report, const VariantSpec& variant) {
  if (report.tokens.empty()) return absl::OkStatus();
  if (report.tokens.size() == report.stored.size() * variant.block_tokens) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tokens: ", report.tokens.size(), " do not fill ",
                                                 report.stored.size(), " stored blocks, each of ",
                                                 variant.block_tokens));
}

// Splits the report into parts that each fit in a message, in the order in which they are applied.
std::vector<wire::DeviceBlocks> PartsOf(const DeviceReport& report, const VariantHandle& variant) {
  std::vector<wire::DeviceBlocks> parts;
  const auto add = [&]() -> wire::DeviceBlocks& {
    parts.emplace_back().variant = variant.index;
    return parts.back();
  };
  if (report.cleared) add().cleared = true;
  for (std::span left = report.removed; !left.empty();) {
    const std::span some = left.first(std::min(left.size(), wire::kKeysMax));
    add().removed.assign(some.begin(), some.end());
    left = left.subspan(some.size());
  }
  const size_t each = report.tokens.empty() ? 0 : variant.spec.block_tokens;
  const size_t blocks_max =
      each == 0 ? wire::kKeysMax : std::min(wire::kKeysMax, wire::kLookupTokensMax / each);
  Digest parent = report.parent;
  for (size_t at = 0; at < report.stored.size();) {
    const std::span some =
        report.stored.subspan(at).first(std::min(blocks_max, report.stored.size() - at));
    const std::span tokens = report.tokens.subspan(at * each, some.size() * each);
    wire::DeviceBlocks& part = add();
    part.stored.assign(some.begin(), some.end());
    part.tokens.assign(tokens.begin(), tokens.end());
    if (each > 0) part.parent = std::exchange(parent, some.back());
    at += some.size();
  }
  return parts;
}

}  // namespace

Session::Session(std::unique_ptr<SessionImpl> impl) : impl_(std::move(impl)) {}

Session::~Session() {
  if (impl_->core->in_child()) {
    (void)impl_.release();  // a forked child lacks the threads to join
    return;
  }
  const bool bye = impl_->core->Close();
  if (impl_->stream->Close(kCloseDeadline) && bye) impl_->core->OnGoodbyeTaken();
}

absl::StatusOr<std::vector<VariantHandle>> Session::Register(std::span<const ContentSpec> contents,
                                                             std::span<const VariantSpec> variants,
                                                             const CallOptions& options) {
  SessionCore& core = *impl_->core;
  LARDER_RETURN_IF_ERROR(core.status());
  if (contents.size() > wire::kRegisterContentsMax || variants.size() > wire::kVariantsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "one call registers at most ", wire::kRegisterContentsMax, " contents and ",
        wire::kVariantsMax, " variants, not ", contents.size(), " and ", variants.size()));
  }
  wire::Up up;
  wire::Register& request = up.registers.emplace_back();
  OpenCall call = core.Open();
  request.id = call.id();
  request.contents.assign(contents.begin(), contents.end());
  request.variants.assign(variants.begin(), variants.end());
  for (ContentSpec& content : request.contents) {
    content.tenant = core.attached().tenant;
    LARDER_RETURN_IF_ERROR(content.Validate());
    content.tenant.clear();  // the daemon knows the caller's tenant
  }
  for (const VariantSpec& variant : variants) {
    LARDER_RETURN_IF_ERROR(variant.Validate());
  }
  LARDER_RETURN_IF_ERROR(core.Send(std::move(up)));
  LARDER_ASSIGN_OR_RETURN(const wire::Registered answer,
                          AwaitAnswer<wire::Registered>(call, options.stop, DeadlineOf(options)));
  LARDER_RETURN_IF_ERROR(StatusOf(answer.status, answer.message));
  if (answer.variants.size() != variants.size()) {
    return absl::InternalError("the daemon registered another number of variants than requested");
  }
  if (impl_->byte_stream != nullptr) {
    for (ContentSpec content : contents) {
      content.tenant = core.attached().tenant;
      impl_->byte_stream->AddContent(content);
    }
  }
  std::vector<VariantHandle> handles;
  for (size_t i = 0; i < variants.size(); ++i) {
    handles.push_back({answer.variants[i], variants[i].Id(), variants[i], core.attached().session});
  }
  return handles;
}

Digest Session::Seed(ContentSpec content) const {
  content.tenant = impl_->core->attached().tenant;
  return content.Id();
}

absl::StatusOr<std::vector<BlockStatus>> Session::Put(const VariantHandle& variant,
                                                      std::span<const PutBlock> blocks,
                                                      const CallOptions& options) {
  LARDER_RETURN_IF_ERROR(impl_->core->status());
  LARDER_RETURN_IF_ERROR(CheckVariant(variant, attached()));
  return impl_->transport().Put(variant, blocks, options);
}

absl::StatusOr<std::vector<BlockStatus>> Session::Get(const VariantHandle& variant,
                                                      std::span<const GetBlock> blocks,
                                                      const CallOptions& options) {
  LARDER_RETURN_IF_ERROR(impl_->core->status());
  LARDER_RETURN_IF_ERROR(CheckVariant(variant, attached()));
  return impl_->transport().Get(variant, blocks, options);
}

absl::StatusOr<Lease> Session::Acquire(const VariantHandle& variant,
                                       std::span<const Digest> digests,
                                       const CallOptions& options) {
  LARDER_RETURN_IF_ERROR(impl_->core->status());
  if (read_mode() == ReadMode::kStream) {
    return absl::UnavailableError(
        absl::StrCat("this session cannot read in place: ", read_mode_reason()));
  }
  LARDER_RETURN_IF_ERROR(CheckVariant(variant, attached()));
  return Lease::Take(impl_->core, variant, digests, options);
}

absl::StatusOr<Reservation> Session::Reserve(std::span<const ByteCount> bytes,
                                             const CallOptions& options) {
  return ReserveNamed(0, {}, bytes, options);
}

absl::StatusOr<Reservation> Session::Reserve(const VariantHandle& variant,
                                             std::span<const Digest> digests,
                                             std::span<const ByteCount> bytes,
                                             const CallOptions& options) {
  LARDER_RETURN_IF_ERROR(CheckVariant(variant, attached()));
  if (digests.size() != bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(digests.size(), " names for ", bytes.size(), " blocks"));
  }
  return ReserveNamed(variant.index, digests, bytes, options);
}

absl::StatusOr<Reservation> Session::ReserveNamed(uint32_t variant, std::span<const Digest> digests,
                                                  std::span<const ByteCount> bytes,
                                                  const CallOptions& options) {
  LARDER_RETURN_IF_ERROR(impl_->core->status());
  if (write_mode() != WriteMode::kMapped) {
    return absl::UnavailableError(
        absl::StrCat("this session cannot write in place: ", write_mode_reason()));
  }
  SessionCore& core = *impl_->core;
  LARDER_RETURN_IF_ERROR(CheckSizes(bytes, attached().slab_bytes));
  OpenCall call = core.Open();
  wire::Up up;
  up.reserves.push_back({.id = call.id(),
                         .bytes = {bytes.begin(), bytes.end()},
                         .deadline_ms = DeadlineMs(options),
                         .variant = variant,
                         .digests = {digests.begin(), digests.end()}});
  LARDER_RETURN_IF_ERROR(core.Send(std::move(up)));
  LARDER_ASSIGN_OR_RETURN(const wire::Reserved answer,
                          AwaitAnswer<wire::Reserved>(call, options.stop, DeadlineOf(options)));
  if (answer.status != BlockStatus::kDuplicate)
    LARDER_RETURN_IF_ERROR(StatusOf(answer.status, answer.message));
  return Reservation::Take(impl_->core, answer, bytes);
}

absl::Status Session::ReportDevice(const VariantHandle& variant, const DeviceReport& report) {
  SessionCore& core = *impl_->core;
  LARDER_RETURN_IF_ERROR(core.status());
  LARDER_RETURN_IF_ERROR(CheckVariant(variant, attached()));
  if ((attached().feature_bits & wire::kFeatureDeviceBlocks) == 0)
    return absl::UnimplementedError(
        "this larderd does not take reports of device memory: update it");
  LARDER_RETURN_IF_ERROR(CheckReport(report, variant.spec));
  for (wire::DeviceBlocks& part : PartsOf(report, variant)) {
    // The daemon answers this empty request once it has processed what this session sent before.
    if (impl_->reported.load() > kReportAtOnce.value()) {
      impl_->reported = 0;
      if (const auto heard = Register({}, {}); !heard.ok()) return heard.status();
    }
    impl_->reported += (part.stored.size() + part.removed.size()) * sizeof(Digest) +
                       part.tokens.size() * sizeof(uint32_t);
    wire::Up up;
    up.device_blocks.push_back(std::move(part));
    LARDER_RETURN_IF_ERROR(core.Send(std::move(up)));
  }
  return absl::OkStatus();
}

WriteMode Session::write_mode() const { return attached().write_mode; }
const std::string& Session::write_mode_reason() const { return attached().write_mode_reason; }
ReadMode Session::read_mode() const { return attached().read_mode; }
const std::string& Session::read_mode_reason() const { return attached().read_mode_reason; }
const wire::Attached& Session::attached() const { return impl_->core->attached(); }
absl::Status Session::status() const { return impl_->core->status(); }
bool Session::draining() const { return impl_->core->draining(); }

Session::Counters Session::counters() const {
  const SessionCore::Counters& counted = impl_->core->counters();
  Counters out;
  out.blocks_durable = counted.blocks_durable.load(std::memory_order_relaxed);
  out.blocks_put = counted.blocks_put.load(std::memory_order_relaxed);
  out.blocks_got = counted.blocks_got.load(std::memory_order_relaxed);
  out.bytes_put = counted.bytes_put.load(std::memory_order_relaxed);
  out.bytes_got = counted.bytes_got.load(std::memory_order_relaxed);
  out.checked = counted.checked.load(std::memory_order_relaxed);
  out.damaged = counted.damaged.load(std::memory_order_relaxed);
  out.revoked = counted.revoked.load(std::memory_order_relaxed);
  return out;
}

}  // namespace larder
