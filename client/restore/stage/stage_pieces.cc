#include "client/restore/stage/stage_pieces.h"

namespace larder {

std::optional<StagePiece> TopPiece(const StageClaims& claims, size_t lane, uint32_t first,
                                   uint32_t last, const PieceCut& cut) {
  const uint16_t layers = claims.shape().layers;
  StagePiece best;
  LayerSet open;
  for (uint32_t b = last + 1; b-- > first;) {
    if (!claims.lanes()[lane].Has(b)) continue;
    const LayerSet of_block = claims.Loadable(lane, b) - LayerSet({0, cut.floor});
    if (of_block.Top() <= best.layers.end) continue;
    best = {b, {of_block.Top(), of_block.Top()}};
    open = of_block;
    if (best.layers.end == layers && cut.layers_max >= layers) break;
  }
  uint16_t& low = best.layers.begin;
  const auto below = [&] { return LayerSet({static_cast<uint16_t>(low - 1), low}); };
  while (low > 0 && best.layers.count() < cut.layers_max && open.Contains(below())) --low;
  if (best.layers.empty()) return std::nullopt;
  best.bytes = claims.PieceBytes(lane, best.layers);
  return best;
}

std::optional<StagePiece> BottomPiece(const StageClaims& claims, size_t lane, uint32_t first,
                                      uint32_t last, const PieceCut& cut) {
  const uint16_t layers = claims.shape().layers;
  for (uint32_t b = last + 1; b-- > first;) {
    if (!claims.lanes()[lane].Has(b)) continue;
    const LayerSet open = claims.Loadable(lane, b) - LayerSet({0, cut.floor});
    if (open.empty()) continue;
    StagePiece piece{b, {open.Lowest(), open.Lowest()}};
    uint16_t& top = piece.layers.end;
    const auto above = [&] { return LayerSet({top, static_cast<uint16_t>(top + 1)}); };
    while (top < layers && piece.layers.count() < cut.layers_max && open.Contains(above())) ++top;
    piece.bytes = claims.PieceBytes(lane, piece.layers);
    return piece;
  }
  return std::nullopt;
}

}  // namespace larder
