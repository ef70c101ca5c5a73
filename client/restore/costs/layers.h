// A range and a set of the layers of a stage.
//
// Ownership: values.
// Limits: a LayerSet has layers below kStageLayersMax.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace larder {

inline constexpr uint16_t kStageLayersMax = 128;

// Layers [begin, end), counted inside their stage unless a comment says that they are counted
// within the model.
struct StageLayers {
  uint16_t begin = 0;
  uint16_t end = 0;
  [[nodiscard]] constexpr uint16_t count() const {
    return end > begin ? static_cast<uint16_t>(end - begin) : uint16_t{0};
  }
  [[nodiscard]] constexpr bool empty() const { return end <= begin; }
  friend bool operator==(const StageLayers&, const StageLayers&) = default;
};

class LayerSet {
 public:
  constexpr LayerSet() = default;
  explicit constexpr LayerSet(StageLayers range) {
    if (range.empty()) return;
    for (int word = 0; word < 2; ++word) {
      words_[word] = Below(range.end, word) & ~Below(range.begin, word);
    }
  }

  [[nodiscard]] constexpr bool empty() const { return (words_[0] | words_[1]) == 0; }
  [[nodiscard]] constexpr uint16_t count() const {
    return static_cast<uint16_t>(std::popcount(words_[0]) + std::popcount(words_[1]));
  }
  [[nodiscard]] constexpr bool Contains(LayerSet other) const { return (other - *this).empty(); }
  // The lowest layer; kStageLayersMax for the empty set.
  [[nodiscard]] constexpr uint16_t Lowest() const {
    const int low = words_[0] != 0 ? std::countr_zero(words_[0]) : 64 + std::countr_zero(words_[1]);
    return static_cast<uint16_t>(low);
  }
  // One above the highest layer; 0 for the empty set.
  [[nodiscard]] constexpr uint16_t Top() const {
    return static_cast<uint16_t>(words_[1] != 0 ? 128 - std::countl_zero(words_[1])
                                                : 64 - std::countl_zero(words_[0]));
  }

  friend constexpr LayerSet operator|(LayerSet a, LayerSet b) {
    return Of(a.words_[0] | b.words_[0], a.words_[1] | b.words_[1]);
  }
  friend constexpr LayerSet operator&(LayerSet a, LayerSet b) {
    return Of(a.words_[0] & b.words_[0], a.words_[1] & b.words_[1]);
  }
  friend constexpr LayerSet operator-(LayerSet a, LayerSet b) {
    return Of(a.words_[0] & ~b.words_[0], a.words_[1] & ~b.words_[1]);
  }
  friend bool operator==(const LayerSet&, const LayerSet&) = default;

 private:
  static constexpr LayerSet Of(uint64_t low, uint64_t high) {
    LayerSet set;
    set.words_ = {low, high};
    return set;
  }
  // The bits of this word that stand for layers below `layer`.
  static constexpr uint64_t Below(uint16_t layer, int word) {
    const int bits = static_cast<int>(layer) - 64 * word;
    return bits <= 0 ? 0 : bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
  }

  std::array<uint64_t, 2> words_{};
};

}  // namespace larder
