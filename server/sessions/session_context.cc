#include "server/sessions/session_context.h"

#include "absl/strings/str_cat.h"

namespace larder {

absl::Status ChargeAnswers(const Shares::Account& account, size_t waiting,
                           Shares::Ticket* charged) {
  const uint64_t wanted = waiting > SessionSink::kFreeAnswerBytes ? waiting : 0;
  if (wanted == 0) charged->Reset();
  if (wanted <= charged->amount()) {
    charged->ShrinkTo(wanted);
    return absl::OkStatus();
  }
  Shares::Answer more = account.Take(ShareKind::kUnreadBytes, wanted - charged->amount());
  if (!more.admitted())
    return absl::ResourceExhaustedError(absl::StrCat("answers are not read: ", more.why));
  charged->Merge(std::move(more.ticket));
  return absl::OkStatus();
}

absl::Status CheckMetadata(size_t tokens, const SegmentTable& segments) {
  constexpr uint64_t kFixed = 64, kSegment = 24;
  const uint64_t beside = kFixed + tokens * sizeof(uint32_t) + segments.segments.size() * kSegment;
  const uint64_t block = RoundUp(segments.PayloadBytes().value(), kPageBytes);
  if (2 * beside <= block) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tokens and segments: they take about ", beside,
                                                 " bytes beside ", block,
                                                 " of the block; at most half of that"));
}

BlockWriter WriterOf(const Shares::Account& account, std::string_view engine_id) {
  BlockWriter writer;
  if (account.holder().uid && !account.holder().unattached()) writer.uid = *account.holder().uid;
  if (!engine_id.empty()) writer.engine = EngineNumber(engine_id);
  return writer;
}

}  // namespace larder
