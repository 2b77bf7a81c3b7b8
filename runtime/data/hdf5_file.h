// Tables of whole numbers in an HDF5 file, read row by row.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace pipewright {

/// The library is not safe to call from several threads: one thread at a time, over all files.
class Hdf5File {
 public:
  /// InputError if it cannot be opened, or was made with compression that this HDF5 does not know.
  explicit Hdf5File(std::filesystem::path file);
  ~Hdf5File();
  Hdf5File(const Hdf5File&) = delete;
  Hdf5File& operator=(const Hdf5File&) = delete;

  struct Shape {
    int64_t rows = 0;
    int64_t columns = 1;  ///< 1 also of a table of one dimension
    bool operator==(const Shape&) const = default;
  };
  /// InputError unless the file has a table of this name, of whole numbers and of one dimension or two.
  Shape shape(const std::string& table);
  /// Writes shape().columns numbers. RunError if they cannot be read. 0 <= row < shape().rows.
  void read_row(const std::string& table, int64_t row, int64_t* into);

 private:
  class Tables;
  const std::filesystem::path file_;
  std::unique_ptr<Tables> tables_;
};

}  // namespace pipewright
