#include "profiler/parts.h"

#include <algorithm>
#include <set>

#include "graph/error.h"

namespace pipewright {
namespace {

/// What only grows with the part.
int64_t growing_bytes(const MeasuringSizes& sizes, size_t begin, size_t end) {
  int64_t bytes = sizes.input_bytes;
  std::set<size_t> parameters;
  for (size_t i = begin; i < end; ++i) {
    const MeasuringSizes::Piece& piece = sizes.pieces[i];
    bytes += piece.saved_bytes + piece.buffer_bytes;
    for (const size_t parameter : piece.parameters)
      if (parameters.insert(parameter).second) bytes += sizes.parameter_bytes.at(parameter);
  }
  return bytes;
}

}  // namespace

int64_t measuring_bytes(const MeasuringSizes& sizes, size_t begin, size_t end) {
  PW_CHECK(begin < end && end <= sizes.pieces.size(), "a part of pieces " << begin << " to " << end);
  int64_t between = 0, arriving = 0, leaving = 0;
  std::vector<int64_t> change(end - begin + 1, 0);  // of what passes a piece by, from the piece before to it
  for (const MeasuringSizes::Memory& memory : sizes.memories) {
    const size_t last = memory.readers.back();
    if (memory.made >= end || last < begin) continue;
    if (memory.made < begin) {
      between += memory.bytes;
      const auto first_here = std::lower_bound(memory.readers.begin(), memory.readers.end(), begin);
      if (*first_here < end) arriving += memory.bytes;
    } else if (last >= end) {
      leaving += memory.bytes;
      change[memory.made + 1 - begin] += memory.bytes;
    } else {
      change[memory.made + 1 - begin] += 2 * memory.bytes;
      change[last + 1 - begin] -= 2 * memory.bytes;
    }
  }
  int64_t passing = 0, most = 0;
  for (size_t i = begin; i < end; ++i) {
    passing += change[i - begin];
    most = std::max(most, passing + sizes.pieces[i].peak_bytes);
  }
  return growing_bytes(sizes, begin, end) + between + 2 * arriving + 3 * leaving + most;
}

std::vector<PieceRange> parts_within(const MeasuringSizes& sizes, int64_t most_bytes) {
  std::vector<PieceRange> parts;
  for (size_t begin = 0; begin < sizes.pieces.size(); begin = parts.back().end) {
    PieceRange part = {begin, begin + 1, measuring_bytes(sizes, begin, begin + 1)};
    // A longer one may fit where a shorter one does not, if less leaves it.
    for (size_t end = begin + 2; end <= sizes.pieces.size(); ++end) {
      if (growing_bytes(sizes, begin, end) > most_bytes) break;
      const int64_t need = measuring_bytes(sizes, begin, end);
      if (need <= most_bytes) part = {begin, end, need};
    }
    parts.push_back(part);
  }
  return parts;
}

}  // namespace pipewright
