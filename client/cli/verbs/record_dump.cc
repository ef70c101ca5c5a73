#include "client/cli/verbs/record_dump.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/format/payload_cursor.h"
#include "storage/format/record.h"
#include "storage/status_macros.h"
#include "storage/text.h"

namespace larder::cli {
namespace {

// A regular file that is read by position.  The destructor closes it.
class RecordFile {
 public:
  static absl::StatusOr<RecordFile> Open(const std::string& path) {
    RecordFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat facts = {};
    if (file.fd_ < 0 || ::fstat(file.fd_, &facts) != 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", Printable(path)));
    }
    if (!S_ISREG(facts.st_mode)) {
      return absl::InvalidArgumentError(absl::StrCat(Printable(path), " is not a regular file"));
    }
    file.size_ = static_cast<uint64_t>(facts.st_size);
    return file;
  }
  RecordFile(RecordFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}
  RecordFile& operator=(RecordFile&&) = delete;
  ~RecordFile() {
    if (fd_ >= 0) ::close(fd_);
  }

  [[nodiscard]] uint64_t size() const { return size_; }

  // Reads `bytes` bytes from `offset` on, or fewer at the end of the file.
  [[nodiscard]] absl::Status Read(uint64_t offset, uint64_t bytes,
                                  std::vector<std::byte>* out) const {
    out->resize(offset >= size_ ? 0 : std::min(bytes, size_ - offset));
    for (size_t done = 0; done < out->size();) {
      const ssize_t n =
          ::pread(fd_, out->data() + done, out->size() - done, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return absl::ErrnoToStatus(errno, "cannot read");
      if (n == 0) out->resize(done);  // the file shrank
      done += static_cast<size_t>(n);
    }
    return absl::OkStatus();
  }

 private:
  explicit RecordFile(int fd) : fd_(fd) {}
  int fd_;
  uint64_t size_ = 0;
};

enum class SegmentState { kWhole, kDamaged, kCutShort };

struct SegmentReport {
  Segment segment;
  uint32_t first_layer = 0;  // of the block
  uint64_t offset = 0;       // in the payload
  SegmentState state = SegmentState::kWhole;
};

struct RecordReport {
  uint64_t offset = 0;  // in the file
  std::optional<DecodedHeader> decoded;
  std::string error;  // why the header could not be decoded
  std::vector<SegmentReport> segments;

  [[nodiscard]] bool whole() const {
    for (const SegmentReport& s : segments) {
      if (s.state != SegmentState::kWhole) return false;
    }
    return decoded.has_value();
  }
};

const char* ToString(SegmentState state) {
  switch (state) {
    case SegmentState::kWhole:
      return "ok";
    case SegmentState::kDamaged:
      return "damaged";
    case SegmentState::kCutShort:
      return "cut short";
  }
  return "?";
}

const char* ToString(Codec codec) {
  switch (codec) {
    case Codec::kIdentity:
      return "identity";
    case Codec::kLossless:
      return "lossless";
    case Codec::kQuantized:
      return "quantized";
    case Codec::kJoint:
      return "joint";
  }
  return "?";
}

// Reads the header at report->offset.  If it cannot be decoded, report->error says why.  Returns an
// error only if the file cannot be read.
absl::Status ReadHeader(const RecordFile& file, RecordReport* report) {
  std::vector<std::byte> bytes;
  absl::Status status = file.Read(report->offset, kRecordPrefixBytes, &bytes);
  LARDER_RETURN_IF_ERROR(status);
  const absl::StatusOr<ByteCount> size = RecordHeaderBytes(bytes);
  if (!size.ok()) {
    report->error = std::string(size.status().message());
    return absl::OkStatus();
  }
  status = file.Read(report->offset, size->value(), &bytes);
  LARDER_RETURN_IF_ERROR(status);
  absl::StatusOr<DecodedHeader> decoded = DecodeRecordHeader(bytes);
  if (decoded.ok()) {
    report->decoded = *std::move(decoded);
  } else {
    report->error = std::string(decoded.status().message());
  }
  return absl::OkStatus();
}

// Where records begin in a file.
struct Form {
  uint64_t align = kSegmentAlign;  // of records, and of the payload behind its header
  bool gaps = false;               // a page without a header is free, not damaged
};
constexpr Form kRecordFile;
constexpr Form kDataFile{.align = kPageBytes, .gaps = true};

uint64_t PayloadOffset(const RecordReport& report, const Form& form) {
  return report.offset + RoundUp(report.decoded->header_bytes.value(), form.align);
}

absl::Status CheckSegments(const RecordFile& file, const Form& form, RecordReport* report) {
  const uint64_t payload = PayloadOffset(*report, form);
  std::vector<std::byte> bytes;
  SegmentCursor at;
  uint32_t layer = 0;
  for (const Segment& segment : report->decoded->header.table.segments) {
    const uint64_t offset = at.Next(segment.bytes);
    LARDER_RETURN_IF_ERROR(file.Read(payload + offset, segment.bytes, &bytes));
    const SegmentState state = bytes.size() < segment.bytes       ? SegmentState::kCutShort
                               : HashBytes(bytes) == segment.xxh3 ? SegmentState::kWhole
                                                                  : SegmentState::kDamaged;
    report->segments.push_back({segment, layer, offset, state});
    layer += segment.layers;
  }
  return absl::OkStatus();
}

// In a file without gaps (Form::gaps), the list ends at a damaged header, because it is unknown
// where the next record begins.  In a file with gaps a record may begin at any page, also within
// the space of an erased record, so only a whole record is skipped in one step.
absl::StatusOr<std::vector<RecordReport>> ReadRecords(const RecordFile& file, const Form& form) {
  std::vector<RecordReport> reports;
  uint64_t offset = 0;
  do {
    RecordReport report;
    report.offset = offset;
    LARDER_RETURN_IF_ERROR(ReadHeader(file, &report));
    if (!report.decoded.has_value() && form.gaps) {
      offset += form.align;
      continue;
    }
    reports.push_back(std::move(report));
    if (!reports.back().decoded.has_value()) break;
    LARDER_RETURN_IF_ERROR(CheckSegments(file, form, &reports.back()));
    const RecordReport& read = reports.back();
    if (form.gaps && !read.whole()) {
      offset += form.align;
      continue;
    }
    offset = RoundUp(PayloadOffset(read, form) + read.decoded->header.table.PayloadBytes().value(),
                     form.align);
  } while (offset < file.size());
  return reports;
}

std::string ToTable(const RecordReport& report, const Form& form) {
  const bool unknown = form.gaps && !report.whole();
  std::string out =
      absl::StrCat("record at byte ", report.offset, unknown ? ", not whole or erased" : "", "\n");
  if (!report.decoded.has_value())
    return absl::StrCat(out, "  damaged: ", Printable(report.error), "\n");
  const RecordHeader& header = report.decoded->header;
  const auto fact = [&](const char* name, const auto& value) {
    absl::StrAppendFormat(&out, "  %-13s %s\n", name, absl::StrCat(value));
  };
  fact("version", header.version());
  fact("variant", header.key.variant.Hex());
  fact("digest", header.key.digest.Hex());
  fact("parent", header.parent.Hex());
  if (header.content != Digest()) fact("content", header.content.Hex());
  if (header.writer_uid != BlockWriter::kUnknownUid)
    fact("writer", absl::StrCat("uid ", header.writer_uid));
  fact("tokens", header.block_tokens);
  fact("first layer", header.first_layer);
  fact("layout", Printable(header.layout));
  fact("dtype", Printable(header.dtype));
  fact("header bytes", report.decoded->header_bytes.value());
  fact("payload bytes", header.table.PayloadBytes().value());
  absl::StrAppendFormat(&out, "  %-7s %-9s %-9s %13s %11s %-16s %s\n", "segment", "layers", "codec",
                        "offset", "bytes", "xxh3", "state");
  for (size_t i = 0; i < report.segments.size(); ++i) {
    const SegmentReport& s = report.segments[i];
    const std::string layers =
        absl::StrCat(s.first_layer, "..", s.first_layer + s.segment.layers - 1);
    absl::StrAppendFormat(&out, "  %-7d %-9s %-9s %13d %11d %016x %s\n", i, layers,
                          ToString(s.segment.codec), s.offset, s.segment.bytes, s.segment.xxh3,
                          ToString(s.state));
  }
  return out;
}

Json ToJson(const RecordReport& report) {
  Json out = {{"file_offset", report.offset}, {"ok", report.whole()}};
  if (!report.decoded.has_value()) {
    out["error"] = report.error;
    return out;
  }
  const RecordHeader& header = report.decoded->header;
  out["version"] = header.version();
  out["variant"] = header.key.variant.Hex();
  out["digest"] = header.key.digest.Hex();
  out["parent"] = header.parent.Hex();
  if (header.content != Digest()) out["content"] = header.content.Hex();
  if (header.writer_uid != BlockWriter::kUnknownUid) out["writer_uid"] = header.writer_uid;
  out["block_tokens"] = header.block_tokens;
  out["first_layer"] = header.first_layer;
  out["layout"] = header.layout;
  out["dtype"] = header.dtype;
  out["header_bytes"] = report.decoded->header_bytes.value();
  out["payload_bytes"] = header.table.PayloadBytes().value();
  auto& segments = out["segments"] = Json::array();
  for (const SegmentReport& s : report.segments) {
    segments.push_back({{"first_layer", s.first_layer},
                        {"layers", s.segment.layers},
                        {"codec", ToString(s.segment.codec)},
                        {"offset", s.offset},
                        {"bytes", s.segment.bytes},
                        {"xxh3", absl::StrCat(absl::Hex(s.segment.xxh3, absl::kZeroPad16))},
                        {"state", ToString(s.state)}});
  }
  return out;
}

}  // namespace

absl::StatusOr<RecordDump> DumpRecords(const std::string& path) {
  LARDER_ASSIGN_OR_RETURN(const RecordFile file, RecordFile::Open(path));
  const Form& form = path.ends_with(".kv") ? kDataFile : kRecordFile;
  LARDER_ASSIGN_OR_RETURN(const std::vector<RecordReport> reports, ReadRecords(file, form));
  RecordDump dump{.json = Json::array(), .text = {}, .of_disk = form.gaps};
  for (const RecordReport& report : reports) {
    dump.text += ToTable(report, form);
    dump.json.push_back(ToJson(report));
    ++dump.records;
    dump.not_whole += report.whole() ? 0 : 1;
  }
  return dump;
}

}  // namespace larder::cli
