// Keys of random streams: what is drawn depends on names, never on who draws first.
#pragma once

#include <cstdint>
#include <string>

namespace pipewright {

/// 64-bit hash of a name.
uint64_t name_hash(const std::string& name);

/// Key of the stream that belongs to (seed, index, name). Any change of any of the three gives an unrelated
/// key.
uint64_t stream_key(uint64_t seed, int64_t index, uint64_t name_hash);

}  // namespace pipewright
