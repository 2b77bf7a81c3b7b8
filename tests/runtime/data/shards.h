// HDF5 files as BERT is trained with them, small.
#pragma once

#ifdef PIPEWRIGHT_HDF5
#include <hdf5.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace pipewright::testing {

/// By table: its rows.
using Shard = std::map<std::string, std::vector<std::vector<int64_t>>>;

/// Pairs of texts of 50 tokens, some of them masked, of various lengths, filled up with 0.
inline Shard random_shard(uint64_t seed, int64_t rows, int64_t tokens, int64_t masked = 4) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t most) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(most));
  };
  Shard shard;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t length = tokens / 2 + below(tokens / 2), first = 2 + below(length - 3);
    std::vector<int64_t> ids, mask, segments, places, words;
    for (int64_t i = 0; i < tokens; ++i) {
      ids.push_back(i < length ? 1 + below(49) : 0);
      mask.push_back(i < length ? 1 : 0);
      segments.push_back(i >= first && i < length ? 1 : 0);
    }
    for (int64_t i = 1; i < length && static_cast<int64_t>(places.size()) < masked - row % 2;
         i += 1 + below(3))
      places.push_back(i);
    for (size_t i = 0; i < places.size(); ++i) words.push_back(1 + below(49));
    places.resize(static_cast<size_t>(masked));
    words.resize(static_cast<size_t>(masked));
    shard["input_ids"].push_back(ids);
    shard["input_mask"].push_back(mask);
    shard["segment_ids"].push_back(segments);
    shard["masked_lm_positions"].push_back(places);
    shard["masked_lm_ids"].push_back(words);
    shard["next_sentence_labels"].push_back({below(2)});
  }
  return shard;
}

/// As the scripts that make them do: compressed, of the types that they choose; labels have one dimension.
inline void write_shard(const std::filesystem::path& file, const Shard& shard) {
  std::filesystem::create_directories(file.parent_path());
  const auto good = [&](hid_t id) {
    if (id < 0) throw std::runtime_error("HDF5 cannot write " + file.string());
    return id;
  };
  const hid_t out = good(H5Fcreate(file.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
  for (const auto& [name, rows] : shard) {
    const bool flat = name == "next_sentence_labels";
    const bool bytes = flat || name == "input_mask" || name == "segment_ids";
    const hsize_t sizes[] = {rows.size(), rows.at(0).size()};
    const hsize_t chunk[] = {std::min<hsize_t>(5, rows.size()), rows.at(0).size()};
    std::vector<int64_t> numbers;
    for (const auto& row : rows) numbers.insert(numbers.end(), row.begin(), row.end());
    const hid_t space = good(H5Screate_simple(flat ? 1 : 2, sizes, nullptr));
    const hid_t how = good(H5Pcreate(H5P_DATASET_CREATE));
    good(H5Pset_chunk(how, flat ? 1 : 2, chunk));
    good(H5Pset_deflate(how, 6));
    const hid_t table = good(H5Dcreate2(out, name.c_str(), bytes ? H5T_STD_I8LE : H5T_STD_I32LE, space,
                                        H5P_DEFAULT, how, H5P_DEFAULT));
    good(H5Dwrite(table, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, numbers.data()));
    H5Dclose(table);
    H5Pclose(how);
    H5Sclose(space);
  }
  good(H5Fclose(out));
}

}  // namespace pipewright::testing
#endif
