// How small do codecs make KV, and how fast are they?  Each segment of the records in a daemon's
// disk folder is encoded by zstd 1 to 9 and by lz4, of the bytes as they are, of byte planes and of
// bit planes, and by Larder's own codec.
//
//   bench_codecs FOLDER [--json FILE] [--rounds N]
// deploy/quickstart.sh --keep leaves such a folder, with the KV of a real model.
//
// One thread.  Speeds are of raw bytes; every contestant runs once in each round, in turn, and the
// medians are reported.  A segment, or a plane of it, that does not become shorter counts with its
// raw size.
#include <lz4.h>
#include <zstd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/harness/harness.h"
#include "bench/harness/memory_speed.h"
#include "storage/check.h"
#include "storage/codec/host_codecs.h"
#include "storage/format/record.h"

namespace larder::bench {
namespace {

using Bytes = std::vector<std::byte>;

struct Segment {
  Bytes raw;
  size_t element_bytes = 1;
};

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The raw segments of all records found at page boundaries of the folder's data files.
std::vector<Segment> SegmentsIn(const std::string& folder) {
  std::vector<Segment> segments;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".kv") continue;
    const std::string file = ReadFile(entry.path());
    const std::span bytes = std::as_bytes(std::span(file));
    for (size_t at = 0; at < bytes.size(); at += kPageBytes) {
      const auto record = DecodeRecordHeader(bytes.subspan(at));
      if (!record.ok()) continue;
      size_t offset = at + RoundUp(record->header_bytes.value(), kPageBytes);
      for (const auto& segment : record->header.table.segments) {
        const auto raw = bytes.subspan(offset, segment.bytes);
        if (segment.codec == Codec::kIdentity)
          segments.push_back({{raw.begin(), raw.end()}, ElementBytes(record->header.dtype)});
        offset += RoundUp(segment.bytes, kSegmentAlign);
      }
    }
  }
  return segments;
}

// ---- how a contestant encodes a run of bytes; Encode returns 0 if it does not become shorter
struct Coder {
  virtual ~Coder() = default;
  virtual size_t Encode(std::span<const std::byte> from, std::span<std::byte> to) = 0;
  virtual void Decode(std::span<const std::byte> from, std::span<std::byte> to) = 0;
};

class Zstd final : public Coder {
 public:
  explicit Zstd(int level) : level_(level) {}
  ~Zstd() override {
    ZSTD_freeCCtx(compress_);
    ZSTD_freeDCtx(decompress_);
  }
  size_t Encode(std::span<const std::byte> from, std::span<std::byte> to) override {
    const size_t size =
        ZSTD_compressCCtx(compress_, to.data(), from.size() - 1, from.data(), from.size(), level_);
    return ZSTD_isError(size) ? 0 : size;
  }
  void Decode(std::span<const std::byte> from, std::span<std::byte> to) override {
    LARDER_CHECK(ZSTD_decompressDCtx(decompress_, to.data(), to.size(), from.data(), from.size()) ==
                 to.size());
  }

 private:
  const int level_;
  ZSTD_CCtx* const compress_ = ZSTD_createCCtx();
  ZSTD_DCtx* const decompress_ = ZSTD_createDCtx();
};

class Lz4 final : public Coder {
 public:
  size_t Encode(std::span<const std::byte> from, std::span<std::byte> to) override {
    const int size =
        LZ4_compress_default(Chars(from.data()), reinterpret_cast<char*>(to.data()),
                             static_cast<int>(from.size()), static_cast<int>(from.size() - 1));
    return static_cast<size_t>(size);
  }
  void Decode(std::span<const std::byte> from, std::span<std::byte> to) override {
    LARDER_CHECK(LZ4_decompress_safe(Chars(from.data()), reinterpret_cast<char*>(to.data()),
                                     static_cast<int>(from.size()),
                                     static_cast<int>(to.size())) == static_cast<int>(to.size()));
  }

 private:
  static const char* Chars(const std::byte* bytes) { return reinterpret_cast<const char*>(bytes); }
};

// ---- how the bytes of 16-bit numbers are laid out before they are encoded
enum class Layout { kAsIs, kBytePlanes, kBitPlanes };

size_t PlanesOf(Layout layout) {
  return layout == Layout::kAsIs ? 1 : layout == Layout::kBytePlanes ? 2 : 16;
}

void Apart(Layout layout, const Bytes& raw, Bytes& planes) {
  if (layout == Layout::kAsIs) planes = raw;
  if (layout == Layout::kBytePlanes) {
    const size_t half = raw.size() / 2;
    for (size_t i = 0; i < half; ++i) {
      planes[i] = raw[2 * i];
      planes[half + i] = raw[2 * i + 1];
    }
  }
  if (layout != Layout::kBitPlanes) return;
  std::fill(planes.begin(), planes.end(), std::byte{0});
  const size_t numbers = raw.size() / 2, plane_bytes = numbers / 8;
  for (size_t i = 0; i < numbers; ++i) {
    uint16_t number;
    std::memcpy(&number, raw.data() + 2 * i, sizeof number);
    for (size_t bit = 0; bit < 16; ++bit)
      planes[bit * plane_bytes + i / 8] |= static_cast<std::byte>((number >> bit & 1) << i % 8);
  }
}

void Together(Layout layout, const Bytes& planes, Bytes& raw) {
  if (layout == Layout::kAsIs) raw = planes;
  if (layout == Layout::kBytePlanes) {
    const size_t half = raw.size() / 2;
    for (size_t i = 0; i < half; ++i) {
      raw[2 * i] = planes[i];
      raw[2 * i + 1] = planes[half + i];
    }
  }
  if (layout != Layout::kBitPlanes) return;
  const size_t numbers = raw.size() / 2, plane_bytes = numbers / 8;
  for (size_t i = 0; i < numbers; ++i) {
    uint16_t number = 0;
    for (size_t bit = 0; bit < 16; ++bit) {
      const auto one = static_cast<unsigned>(planes[bit * plane_bytes + i / 8]) >> i % 8 & 1;
      number = static_cast<uint16_t>(number | one << bit);
    }
    std::memcpy(raw.data() + 2 * i, &number, sizeof number);
  }
}

// ---- a contestant encodes all segments and decodes them again
struct Result {
  uint64_t bytes = 0;
  double encode_s = 0, decode_s = 0;
};
struct Contestant {
  std::string name;
  std::function<Result(const std::vector<Segment>&)> run;
};

Result RunLayout(Layout layout, Coder& coder, const std::vector<Segment>& segments) {
  Result result;
  const size_t count = PlanesOf(layout);
  for (const Segment& segment : segments) {
    const size_t plane_bytes = segment.raw.size() / count;
    Bytes planes(segment.raw.size()), encoded(segment.raw.size()), back(segment.raw.size()),
        raw(segment.raw.size());
    std::vector<size_t> lengths(count);
    double begin = SecondsNow();
    Apart(layout, segment.raw, planes);
    for (size_t plane = 0; plane < count; ++plane) {
      const size_t at = plane * plane_bytes;
      lengths[plane] =
          coder.Encode(std::span(planes).subspan(at, plane_bytes), std::span(encoded).subspan(at));
    }
    result.encode_s += SecondsNow() - begin;
    begin = SecondsNow();
    for (size_t plane = 0; plane < count; ++plane) {
      const size_t at = plane * plane_bytes;
      const auto to = std::span(back).subspan(at, plane_bytes);
      if (lengths[plane] > 0) {
        coder.Decode(std::span(encoded).subspan(at, lengths[plane]), to);
      } else {
        std::memcpy(to.data(), planes.data() + at, plane_bytes);
      }
      result.bytes += lengths[plane] > 0 ? lengths[plane] : plane_bytes;
    }
    Together(layout, back, raw);
    result.decode_s += SecondsNow() - begin;
    LARDER_CHECK(raw == segment.raw);
  }
  return result;
}

Result RunCodec(BlockCodec& codec, const std::vector<Segment>& segments) {
  Result result;
  for (const Segment& segment : segments) {
    Bytes encoded(segment.raw.size()), raw(segment.raw.size());
    double begin = SecondsNow();
    const auto size = codec.Encode(segment.raw, segment.element_bytes, encoded);
    result.encode_s += SecondsNow() - begin;
    result.bytes += size.value_or(segment.raw.size());
    begin = SecondsNow();
    if (size) {
      LARDER_CHECK(codec.Decode(std::span(encoded).first(*size), raw).ok());
    } else {
      raw = segment.raw;
    }
    result.decode_s += SecondsNow() - begin;
    LARDER_CHECK(raw == segment.raw);
  }
  return result;
}

std::vector<Contestant> Contestants() {
  std::vector<Contestant> all;
  const std::pair<Layout, const char*> layouts[] = {{Layout::kAsIs, ""},
                                                    {Layout::kBytePlanes, "byte planes, "},
                                                    {Layout::kBitPlanes, "bit planes, "}};
  for (const auto& [layout, what] : layouts) {
    const auto add = [&all, layout = layout, what = what](const std::string& name,
                                                          std::shared_ptr<Coder> coder) {
      all.push_back({what + name, [layout, coder](const auto& segments) {
                       return RunLayout(layout, *coder, segments);
                     }});
    };
    for (int level = 1; level <= 9; ++level)
      add(absl::StrCat("zstd ", level), std::make_shared<Zstd>(level));
    add("lz4", std::make_shared<Lz4>());
  }
  const std::shared_ptr<BlockCodec> ours = MakeHostCodec(Codec::kLossless);
  all.push_back(
      {"larder lossless", [ours](const auto& segments) { return RunCodec(*ours, segments); }});
  return all;
}

void Print(const std::string& name, uint64_t raw, const std::vector<Result>& rounds,
           const std::string& memory, std::FILE* json) {
  std::vector<double> encode, decode;
  for (const Result& round : rounds) {
    encode.push_back(static_cast<double>(raw) / round.encode_s);
    decode.push_back(static_cast<double>(raw) / round.decode_s);
  }
  const double size = static_cast<double>(rounds.front().bytes) / static_cast<double>(raw);
  std::printf("%-22s %7.4f %9.2f GB/s %9.2f GB/s  equal\n", name.c_str(), size,
              Median(encode) / 1e9, Median(decode) / 1e9);
  if (json == nullptr) return;
  std::fprintf(json,
               "{\"codec\":\"%s\",\"size\":%.5f,\"encode\":%.0f,\"decode\":%.0f,\"rounds\":%zu,"
               "\"memory_gb_s\":%s}\n",
               name.c_str(), size, Median(encode), Median(decode), rounds.size(), memory.c_str());
}

int Run(const std::string& folder, const std::string& json_file, int rounds) {
  const std::vector<Segment> segments = SegmentsIn(folder);
  uint64_t raw = 0;
  for (const Segment& segment : segments) raw += segment.raw.size();
  if (raw == 0) {
    std::fprintf(stderr,
                 "bench_codecs: no records in %s; deploy/quickstart.sh --keep leaves a folder "
                 "with records\n",
                 folder.c_str());
    return 2;
  }
  std::printf("%zu segments, %.1f MB raw, %d rounds, 1 thread\n", segments.size(),
              static_cast<double>(raw) / 1e6, rounds);
  const std::vector<Contestant> contestants = Contestants();
  std::vector<std::vector<Result>> results(contestants.size());
  MemorySpeed memory;
  for (int round = 0; round < rounds; ++round) {
    memory.Measure();
    for (size_t i = 0; i < contestants.size(); ++i)
      results[i].push_back(contestants[i].run(segments));
  }
  std::printf("memory %s GB/s, by 1 and 2 threads\n", ToText(memory.Get()).c_str());
  std::printf("%-22s %7s %14s %14s  %s\n", "", "size", "encode", "decode", "bits");
  std::FILE* const json = json_file.empty() ? nullptr : std::fopen(json_file.c_str(), "a");
  for (size_t i = 0; i < contestants.size(); ++i)
    Print(contestants[i].name, raw, results[i], ToJson(memory.Get()), json);
  if (json != nullptr) std::fclose(json);
  return 0;
}

}  // namespace
}  // namespace larder::bench

int main(int argc, char** argv) {
  std::string folder, json;
  int rounds = 5;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json" && i + 1 < argc) {
      json = argv[++i];
    } else if (word == "--rounds" && i + 1 < argc) {
      rounds = std::max(1, std::atoi(argv[++i]));
    } else if (!word.starts_with("-") && folder.empty()) {
      folder = word;
    } else {
      std::fprintf(stderr, "Usage: bench_codecs FOLDER [--json FILE] [--rounds N]\n");
      return 2;
    }
  }
  if (folder.empty() || !std::filesystem::is_directory(folder)) {
    std::fprintf(stderr,
                 "bench_codecs: FOLDER must be the disk folder of a larderd; deploy/quickstart.sh "
                 "--keep leaves one\n");
    return 2;
  }
  return larder::bench::Run(folder, json, rounds);
}
