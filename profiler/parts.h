// Which consecutive parts of a model are measured each in one piece, so that none needs more memory than
// there is. No tensors here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pipewright {

/// What measuring takes, piece by piece. A piece is a run of nodes that no part separates, mostly one node.
struct MeasuringSizes {
  struct Piece {
    int64_t saved_bytes = 0;   ///< made by its nodes and kept for a backward, of this piece or another
    int64_t peak_bytes = 0;    ///< the most that a pass over it alone allocates; Bench::peak_bytes()
    int64_t buffer_bytes = 0;  ///< of the model's
    std::vector<size_t> parameters = {};  ///< that it reads: positions in parameter_bytes
  };
  /// Memory in which values lie that later pieces read.
  struct Memory {
    size_t made = 0;              ///< by this piece
    std::vector<size_t> readers;  ///< later ones, ascending, at least one
    int64_t bytes = 0;
  };
  std::vector<Piece> pieces;
  std::vector<Memory> memories;
  std::vector<int64_t> parameter_bytes;  ///< with gradients and all that updates of them hold
  int64_t input_bytes = 0;               ///< the minibatch
};

/// Pieces [begin, end).
struct PieceRange {
  size_t begin = 0;
  size_t end = 0;
  int64_t need_bytes = 0;  ///< of measuring_bytes()
};

/// The most that measuring pieces [begin, end) as one part holds at a time; an upper bound:
///
///   minibatch  of the model
///   weights    of the parameters read here, and buffers
///   between    what earlier parts made and this one or a later one reads
///   arriving   2 x what of it is read here: a copy for each pass, its gradient
///   saved      for the backward, all of it
///   leaving    3 x what is made here and read later: kept, its gradient, and a copy of that for each pass
///   a piece    the most, over the pieces, of its peak and what passes it by: values made before it and read
///              after it, or their gradients; those that are read here twice, as gradients are added up
int64_t measuring_bytes(const MeasuringSizes& sizes, size_t begin, size_t end);

/// From the first piece on, each part as long as `most_bytes` allow. A piece that needs more by itself is a
/// part of its own.
std::vector<PieceRange> parts_within(const MeasuringSizes& sizes, int64_t most_bytes);

}  // namespace pipewright
