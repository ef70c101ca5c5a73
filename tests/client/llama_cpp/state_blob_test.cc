// Synthetic states that are written by hand here, so that reader and writer are not checked only
// against each other.
#include "client/llama_cpp/state_blob.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace larder::llama {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

// Layers differ in type and row size, so that a mix-up of planes is detected.
StateShape Shape() {
  return {.keys = {{1, 6}, {8, 10}, {1, 4}}, .values = {{1, 2}, {0, 8}, {1, 12}}};
}

template <class T>
void Append(Bytes* out, T value) {
  const auto* p = reinterpret_cast<const std::byte*>(&value);
  out->insert(out->end(), p, p + sizeof(T));
}

// Byte `i` of the row of `position` in plane `plane`.  In these tests it differs from the bytes of
// neighbouring rows and planes.
std::byte RowByte(size_t plane, uint32_t position, uint64_t i) {
  return static_cast<std::byte>(plane * 89 + position * 13 + i + 1);
}

void AppendRows(Bytes* out, size_t plane, TokenRange tokens, uint64_t row_bytes) {
  for (uint32_t p = tokens.begin; p < tokens.end; ++p) {
    for (uint64_t i = 0; i < row_bytes; ++i) out->push_back(RowByte(plane, p, i));
  }
}

Bytes MakeState(const StateShape& shape, TokenRange tokens, int32_t sequence = 0) {
  Bytes out;
  Append(&out, uint32_t{0xaf143cd8});
  Append(&out, sequence);
  Append(&out, uint32_t{1});
  Append(&out, tokens.end - tokens.begin);
  for (uint32_t p = tokens.begin; p < tokens.end; ++p) {
    Append(&out, static_cast<int32_t>(p));
    Append(&out, uint32_t{1});
    Append(&out, sequence);
  }
  Append(&out, uint32_t{0});
  Append(&out, static_cast<uint32_t>(shape.layers()));
  size_t plane_index = 0;
  for (const auto* planes : {&shape.keys, &shape.values}) {
    for (const PlaneShape& plane : *planes) {
      Append(&out, plane.type);
      Append(&out, plane.row_bytes);
      AppendRows(&out, plane_index++, tokens, plane.row_bytes);
    }
  }
  return out;
}

Bytes MakeSegment(const StateShape& shape, size_t layer, TokenRange tokens) {
  Bytes out;
  AppendRows(&out, layer, tokens, shape.keys[layer].row_bytes);
  AppendRows(&out, shape.layers() + layer, tokens, shape.values[layer].row_bytes);
  return out;
}

Bytes Joined(StateJoiner* joiner, uint32_t cells) {
  const std::span<const std::byte> state = joiner->Finish(cells);
  return {state.begin(), state.end()};
}

TEST(StateViewTest, ReadsShapeAndPositions) {
  const Bytes state = MakeState(Shape(), {5, 12}, 2);
  const absl::StatusOr<StateView> view = StateView::Parse(state);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->shape(), Shape());
  EXPECT_EQ(view->positions(), (TokenRange{5, 12}));
  EXPECT_EQ(Shape().StateBytes(7).value(), state.size());
}

TEST(StateViewTest, CutsKeyRowsThenValueRows) {
  const Bytes state = MakeState(Shape(), {5, 12});
  const absl::StatusOr<StateView> view = StateView::Parse(state);
  ASSERT_TRUE(view.ok()) << view.status();
  for (const TokenRange tokens :
       {TokenRange{5, 6}, TokenRange{7, 10}, TokenRange{11, 12}, TokenRange{5, 12}}) {
    for (size_t layer = 0; layer < Shape().layers(); ++layer) {
      Bytes segment(Shape().SegmentBytes(layer, tokens.end - tokens.begin).value());
      view->CopySegment(layer, tokens, segment);
      EXPECT_THAT(segment, ElementsAreArray(MakeSegment(Shape(), layer, tokens)));
    }
  }
}

TEST(StateJoinerTest, BlocksInAnyOrderMakeTheStateByteForByte) {
  const std::vector<TokenRange> blocks = {{8, 12}, {0, 4}, {4, 8}};
  StateJoiner joiner(Shape(), {0, 12});
  for (const TokenRange block : blocks) {
    for (size_t layer = 0; layer < Shape().layers(); ++layer) {
      joiner.PlaceSegment(layer, block, MakeSegment(Shape(), layer, block));
    }
  }
  EXPECT_THAT(Joined(&joiner, 12), ElementsAreArray(MakeState(Shape(), {0, 12})));
}

TEST(StateJoinerTest, AShorterPrefixIsAValidState) {
  for (uint32_t cells = 1; cells <= 12; ++cells) {
    StateJoiner joiner(Shape(), {0, 12});
    for (size_t layer = 0; layer < Shape().layers(); ++layer) {
      joiner.PlaceSegment(layer, {0, 12}, MakeSegment(Shape(), layer, {0, 12}));
    }
    EXPECT_THAT(Joined(&joiner, cells), ElementsAreArray(MakeState(Shape(), {0, cells})))
        << cells << " cells";
  }
}

TEST(StateJoinerTest, SegmentsCutFromAStateJoinToTheSameState) {
  const Bytes state = MakeState(Shape(), {0, 9});
  const absl::StatusOr<StateView> view = StateView::Parse(state);
  ASSERT_TRUE(view.ok()) << view.status();
  StateJoiner joiner(view->shape(), {0, 9});
  for (const TokenRange block : {TokenRange{0, 3}, TokenRange{3, 6}, TokenRange{6, 9}}) {
    for (size_t layer = 0; layer < Shape().layers(); ++layer) {
      Bytes segment(Shape().SegmentBytes(layer, 3).value());
      view->CopySegment(layer, block, segment);
      joiner.PlaceSegment(layer, block, segment);
    }
  }
  EXPECT_THAT(Joined(&joiner, 9), ElementsAreArray(state));
}

TEST(StateJoinerTest, ARangeOfATextIsAStateOfItsPositions) {
  for (const uint32_t end : {9u, 12u}) {
    StateJoiner joiner(Shape(), {5, 12});
    for (const TokenRange block : {TokenRange{9, 12}, TokenRange{5, 9}}) {
      for (size_t layer = 0; layer < Shape().layers(); ++layer) {
        joiner.PlaceSegment(layer, block, MakeSegment(Shape(), layer, block));
      }
    }
    EXPECT_THAT(Joined(&joiner, end - 5), ElementsAreArray(MakeState(Shape(), {5, end})));
  }
}

// Offsets of the fields of MakeState(Shape(), {0, 2}).
constexpr size_t kStreamsAt = 8, kCellsAt = 12, kFirstCellAt = 16, kTransposedAt = 40,
                 kLayersAt = 44, kRowBytesAt = 52;

struct Broken {
  const char* name;
  size_t at;
  uint64_t value;
  size_t bytes;
  const char* says;
};

class BrokenStateTest : public testing::TestWithParam<Broken> {};

TEST_P(BrokenStateTest, IsRefusedWithItsReason) {
  Bytes state = MakeState(Shape(), {0, 2});
  std::memcpy(state.data() + GetParam().at, &GetParam().value, GetParam().bytes);
  const absl::Status status = StateView::Parse(state).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, BrokenStateTest,
    testing::Values(Broken{"Magic", 0, 1, 4, "magic"},
                    Broken{"NoStream", kStreamsAt, 0, 4, "streams"},
                    Broken{"TwoStreams", kStreamsAt, 2, 4, "streams"},
                    Broken{"NoCells", kCellsAt, 0, 4, "0 cells"},
                    Broken{"HugeCells", kCellsAt, 0xffffffff, 4, "cells"},
                    Broken{"MoreCells", kCellsAt, 3, 4, "cell 2"},
                    Broken{"NegativePosition", kFirstCellAt, 0xffffffff, 4, "negative"},
                    Broken{"LastPosition", kFirstCellAt, 0x7fffffff, 4, "continue"},
                    Broken{"SharedCell", kFirstCellAt + 4, 2, 4, "sequences"},
                    Broken{"PositionGap", kFirstCellAt + 12, 7, 4, "continue"},
                    Broken{"Transposed", kTransposedAt, 1, 4, "transposed"},
                    Broken{"NoLayers", kLayersAt, 0, 4, "0 layers"},
                    Broken{"ManyLayers", kLayersAt, 1025, 4, "layers"},
                    Broken{"FewerLayers", kLayersAt, 2, 4, "follow"},
                    Broken{"NoRow", kRowBytesAt, 0, 8, "rows of 0"},
                    Broken{"HugeRow", kRowBytesAt, ~uint64_t{0}, 8, "rows of"},
                    Broken{"LongRow", kRowBytesAt, 1u << 20, 8, "inside the rows of layer 0"}),
    [](const auto& broken) { return broken.param.name; });

TEST(StateViewTest, EveryTruncatedStateIsRefused) {
  const Bytes state = MakeState(Shape(), {0, 4});
  for (size_t size = 0; size < state.size(); ++size) {
    // Each cut is a copy, so that the sanitizer detects a read of one byte too many.
    const Bytes cut(state.begin(), state.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_EQ(StateView::Parse(cut).status().code(), absl::StatusCode::kInvalidArgument) << size;
  }
}

TEST(StateViewTest, ABytePastTheEndIsRefused) {
  Bytes state = MakeState(Shape(), {0, 4});
  state.push_back(std::byte{0});
  EXPECT_THAT(std::string(StateView::Parse(state).status().message()), HasSubstr("follow"));
}

TEST(StateViewTest, RandomDamageIsRefusedOrReadWithinBounds) {
  constexpr uint32_t kSeed = 20261121;
  std::mt19937 random(kSeed);
  const Bytes state = MakeState(Shape(), {0, 4});
  for (int round = 0; round < 20'000; ++round) {
    Bytes damaged = state;
    for (uint32_t n = 1 + random() % 4; n > 0; --n)
      damaged[random() % 110] = static_cast<std::byte>(random());
    const absl::StatusOr<StateView> view = StateView::Parse(damaged);
    if (!view.ok()) continue;
    for (size_t layer = 0; layer < view->shape().layers(); ++layer) {
      const TokenRange tokens = view->positions();
      Bytes segment(view->shape().SegmentBytes(layer, tokens.end - tokens.begin).value());
      view->CopySegment(layer, tokens, segment);
    }
  }
}

}  // namespace
}  // namespace larder::llama
