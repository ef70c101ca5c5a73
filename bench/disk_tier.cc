// What does the disk tier cost over the disk itself?  Puts and cold gets of 1 MiB blocks at the
// tier's own interface, without daemon and client, against O_DIRECT reads and writes of as many
// bytes by as many threads.
//
// The disk under test is the one that holds the build tree.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "bench/harness/harness.h"
#include "bench/harness/temporary_directory.h"
#include "storage/disk/file_disk_tier.h"
#include "storage/disk/page_buffer.h"
#include "storage/status_macros.h"

namespace larder::bench {
namespace {

constexpr uint64_t kBlockBytes = 1 << 20;
constexpr uint32_t kSegments = 16;
constexpr size_t kStored = 1024;  // blocks that are read: 1 GiB
constexpr size_t kWritten = 256;  // blocks that a round writes
constexpr size_t kBatch = 32;     // blocks between two syncs
constexpr size_t kReaders = 4;

Digest Numbered(uint64_t number) {
  Digest digest;
  std::memcpy(digest.bytes.data(), &number, sizeof number);
  return digest;
}

// The payloads repeat after 64 MiB: a disk does not care, and more memory is left for caches.
class Payloads {
 public:
  Payloads() : pages_(kDistinct * kBlockBytes / kPageBytes), tables_(kDistinct) {
    std::mt19937_64 random(1);
    const std::span<std::byte> bytes = pages_.bytes();
    for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
      const uint64_t word = random();
      std::memcpy(bytes.data() + at, &word, sizeof word);
    }
    for (size_t i = 0; i < kDistinct; ++i) {
      tables_[i] = UniformTable(kSegments, kBlockBytes / kSegments);
      HashPayload(Of(i), &tables_[i]);
    }
  }
  [[nodiscard]] std::span<const std::byte> Of(size_t block) const {
    return pages_.bytes().subspan(block % kDistinct * kBlockBytes, kBlockBytes);
  }
  [[nodiscard]] RecordHeader Header(size_t block) const {
    RecordHeader header;
    header.key = {.variant = Numbered(7), .digest = Numbered(block + 1)};
    header.parent = Numbered(block);
    header.block_tokens = 16;
    header.layout = "bench/1";
    header.dtype = "f16";
    header.table = tables_[block % kDistinct];
    return header;
  }

 private:
  static constexpr size_t kDistinct = 64;
  PageBuffer pages_;
  std::vector<SegmentTable> tables_;
};

// The disk itself: one preallocated file.
class RawFile {
 public:
  explicit RawFile(const std::string& path)
      : fd_(open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600)) {
    LARDER_CHECK(fd_ >= 0 &&
                 posix_fallocate(fd_, 0, static_cast<off_t>((kStored + kWritten) * kBlockBytes)) ==
                     0);
  }
  ~RawFile() { close(fd_); }
  RawFile(const RawFile&) = delete;
  RawFile& operator=(const RawFile&) = delete;

  absl::Status Write(const Payloads& payloads, size_t from, size_t count) const {
    for (size_t i = from; i < from + count; ++i) {
      const auto at = static_cast<off_t>(i * kBlockBytes);
      if (pwrite(fd_, payloads.Of(i).data(), kBlockBytes, at) !=
              static_cast<ssize_t>(kBlockBytes) ||
          ((i + 1) % kBatch == 0 && fdatasync(fd_) != 0)) {
        return absl::ErrnoToStatus(errno, "cannot write the file of the floor");
      }
    }
    return absl::OkStatus();
  }
  absl::Status Read(size_t block, std::span<std::byte> to) const {
    const auto at = static_cast<off_t>(block * kBlockBytes);
    return pread(fd_, to.data(), kBlockBytes, at) == static_cast<ssize_t>(kBlockBytes)
               ? absl::OkStatus()
               : absl::ErrnoToStatus(errno, "cannot read the file of the floor");
  }

 private:
  const int fd_;
};

// A tier that stores kStored blocks.
class Stocked {
 public:
  Stocked(std::unique_ptr<DiskTier> tier, const Payloads& payloads)
      : tier_(std::move(tier)), payloads_(payloads) {}

  absl::Status Fill() {
    LARDER_RETURN_IF_ERROR(
        tier_->Recover([](const DiskTier::Entry&) { return 0u; }, [] { return false; }));
    return Put(0, kStored, &stored_);
  }
  absl::StatusOr<double> PutRate() {
    std::vector<DiskAddress> put;
    const double start = SecondsNow();
    LARDER_RETURN_IF_ERROR(Put(kStored, kWritten, &put));
    const double rate = kWritten * kBlockBytes / (SecondsNow() - start);
    LARDER_CHECK(tier_->Erase(put).ok());
    return rate;
  }
  // Reads a block, or a quarter of its layers.  The block is described first, as for every
  // promotion.
  absl::Status Get(size_t block, bool quarter, std::span<std::byte> to) const {
    std::optional<DiskTier::Description> known;
    LARDER_RETURN_IF_ERROR(tier_->Describe({&stored_[block], 1}, {&known, 1}));
    if (!known) return absl::DataLossError("the disk tier does not describe a stored block");
    SegmentRange range{0, kSegments, 0, kBlockBytes};
    if (quarter) {
      const uint32_t layers = kSegments / 4;
      LARDER_RETURN_IF_ERROR(known->header.table.Range(layers * (block % 4), layers, &range));
    }
    const auto status =
        tier_->Get({.block = stored_[block], .header = &known->header, .range = range, .to = to});
    return status == DiskTier::GetStatus::kOk ? absl::OkStatus()
                                              : absl::DataLossError(ToString(status));
  }
  [[nodiscard]] const DiskTier& tier() const { return *tier_; }

 private:
  absl::Status Put(size_t from, size_t count, std::vector<DiskAddress>* put) {
    for (size_t at = from; at < from + count; at += kBatch) {
      std::vector<RecordHeader> headers;
      std::vector<DiskTier::NewBlock> blocks;
      const std::vector<uint32_t> tokens(16, 1);
      for (size_t i = at; i < at + kBatch; ++i) headers.push_back(payloads_.Header(i));
      for (size_t i = 0; i < kBatch; ++i)
        blocks.push_back(
            {.header = &headers[i], .tokens = tokens, .payload = payloads_.Of(at + i)});
      std::vector<DiskTier::PutResult> results(kBatch);
      tier_->Put(blocks, results);
      for (size_t i = 0; i < kBatch; ++i) {
        if (results[i].status != DiskTier::PutStatus::kOk)
          return absl::InternalError(ToString(results[i].status));
        put->push_back({headers[i].key, results[i].location});
      }
    }
    return absl::OkStatus();
  }

  std::unique_ptr<DiskTier> tier_;
  const Payloads& payloads_;
  std::vector<DiskAddress> stored_;
};

// Blocks per second of `threads` threads that together read all stored blocks in a random order.
template <class ReadBlock>
absl::StatusOr<double> ReadAll(size_t threads, ReadBlock read) {
  std::vector<size_t> order(kStored);
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937(std::random_device{}()));
  std::atomic<size_t> next{0};
  std::vector<absl::Status> statuses(threads);
  std::vector<std::thread> readers;
  const double start = SecondsNow();
  for (size_t thread = 0; thread < threads; ++thread) {
    readers.emplace_back([&, thread] {
      const PageBuffer to(kBlockBytes / kPageBytes);
      for (size_t i; (i = next++) < kStored;) statuses[thread].Update(read(order[i], to.bytes()));
    });
  }
  for (std::thread& reader : readers) reader.join();
  for (const absl::Status& status : statuses) {
    LARDER_RETURN_IF_ERROR(status);
  }
  return kStored / (SecondsNow() - start);
}

absl::Status MeasurePuts(Harness& harness, Stocked& tier, const Payloads& payloads,
                         const RawFile& raw) {
  const std::string name = "disk_tier_put_1mib";
  if (!harness.Wants(name)) return absl::OkStatus();
  const Contestant contestants[] = {
      [&] { return tier.PutRate(); },
      [&]() -> absl::StatusOr<double> {
        const double start = SecondsNow();
        LARDER_RETURN_IF_ERROR(raw.Write(payloads, kStored, kWritten));
        return kWritten * kBlockBytes / (SecondsNow() - start);
      }};
  LARDER_ASSIGN_OR_RETURN(const auto rates, Interleave(harness, harness.rounds(), contestants));
  harness.Report({name, Median(rates[0]), "B/s", Median(rates[1]), MedianRatio(rates[0], rates[1]),
                  harness.rounds()});
  return absl::OkStatus();
}

absl::Status MeasureGets(Harness& harness, Stocked& tier, const RawFile& raw, size_t threads,
                         const std::string& suffix) {
  const std::string name = "disk_get_cold_1mib" + suffix;
  const std::string quarter = "disk_get_quarter_layers" + suffix;
  if (!harness.Wants(name) && !harness.Wants(quarter)) return absl::OkStatus();
  const Contestant contestants[] = {
      [&] {
        return ReadAll(threads,
                       [&](size_t i, std::span<std::byte> to) { return tier.Get(i, false, to); });
      },
      [&] {
        return ReadAll(threads, [&](size_t i, std::span<std::byte> to) { return raw.Read(i, to); });
      },
      [&] {
        return ReadAll(threads,
                       [&](size_t i, std::span<std::byte> to) { return tier.Get(i, true, to); });
      }};
  LARDER_ASSIGN_OR_RETURN(const auto rates, Interleave(harness, harness.rounds(), contestants));
  const double whole = Median(rates[0]);
  harness.Report({name, whole * kBlockBytes, "B/s", Median(rates[1]) * kBlockBytes,
                  MedianRatio(rates[0], rates[1]), harness.rounds()});
  std::vector<double> quarter_s, quarter_of_whole_s;
  for (size_t round = 0; round < rates[0].size(); ++round) {
    quarter_s.push_back(1 / rates[2][round]);
    quarter_of_whole_s.push_back(1 / rates[0][round] / 4);
  }
  harness.Report({quarter, Median(quarter_s), "s", Median(quarter_of_whole_s),
                  MedianRatio(quarter_s, quarter_of_whole_s), harness.rounds()});
  harness.Note(absl::StrCat(
      threads, " threads; floor of the quarter: a quarter of the time of a whole block"));
  return absl::OkStatus();
}

absl::Status Measure(Harness& harness, Stocked& tier, const Payloads& payloads,
                     const RawFile& raw) {
  LARDER_RETURN_IF_ERROR(tier.Fill());
  LARDER_RETURN_IF_ERROR(MeasurePuts(harness, tier, payloads, raw));
  LARDER_RETURN_IF_ERROR(MeasureGets(harness, tier, raw, kReaders, ""));
  return MeasureGets(harness, tier, raw, 1, "_1t");
}

absl::Status Run(Harness& harness, const std::string& directory) {
  const Payloads payloads;
  const RawFile raw(directory + "/raw");
  LARDER_RETURN_IF_ERROR(raw.Write(payloads, 0, kStored + kWritten));
  FileDiskTier::Options files;
  files.directory = directory + "/files";
  files.limit = GiB(4);
  LARDER_ASSIGN_OR_RETURN(auto file_tier, FileDiskTier::Open(files));
  Stocked file(std::move(file_tier), payloads);
  return Measure(harness, file, payloads, raw);
}

}  // namespace
}  // namespace larder::bench

int main(int argc, char** argv) {
  using namespace larder::bench;
  Harness harness(argc, argv,
                  {"disk_tier_put_1mib", "disk_get_cold_1mib", "disk_get_cold_1mib_1t",
                   "disk_get_quarter_layers", "disk_get_quarter_layers_1t"});
  if (harness.done()) return *harness.done();
  const absl::Status status =
      InDiskDirectory([&](const std::string& directory) { return Run(harness, directory); });
  return status.ok() ? 0 : harness.Fail(status);
}
