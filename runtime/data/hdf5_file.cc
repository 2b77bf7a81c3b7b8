#include "runtime/data/hdf5_file.h"

#include <hdf5.h>

#include <array>
#include <map>
#include <utility>

#include "graph/error.h"

namespace pipewright {
namespace {

// What HDF5 hands out, and how it is given back.
class Handle {
 public:
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  hid_t id() const { return id_; }
  bool is_valid() const { return id_ >= 0; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

constexpr int kMostDimensions = 2;

}  // namespace

class Hdf5File::Tables {
 public:
  explicit Tables(const std::filesystem::path& file)
      : name_(file.string()), file_(open(file.string()), H5Fclose) {
    if (file_.is_valid()) return;
    const bool there = std::filesystem::exists(file);
    throw InputError(name_ + ": " + (there ? "is no HDF5 file that can be read" : "No such file"),
                     there ? "Was it cut while it was copied, or is it of another format?" : "");
  }

  struct Table {
    Handle dataset;
    Shape shape;
    int dimensions;
  };

  const Table& table(const std::string& table) {
    if (const auto known = tables_.find(table); known != tables_.end()) return known->second;
    const std::string where = name_ + ": table '" + table + "': ";
    Handle dataset(H5Dopen2(file_.id(), table.c_str(), H5P_DEFAULT), H5Dclose);
    if (!dataset.is_valid()) {
      throw InputError(where + "it is missing",
                       "Shards have input_ids, input_mask, segment_ids, masked_lm_positions, masked_lm_ids "
                       "and next_sentence_labels.");
    }
    const Handle type(H5Dget_type(dataset.id()), H5Tclose);
    if (H5Tget_class(type.id()) != H5T_INTEGER) throw InputError(where + "expected whole numbers");
    const Handle space(H5Dget_space(dataset.id()), H5Sclose);
    const int dimensions = H5Sget_simple_extent_ndims(space.id());
    if (dimensions < 1 || dimensions > kMostDimensions)
      throw InputError(where + "has " + std::to_string(dimensions) + " dimensions, expected 1 or 2");
    std::array<hsize_t, kMostDimensions> sizes = {0, 1};
    H5Sget_simple_extent_dims(space.id(), sizes.data(), nullptr);
    const Shape shape{static_cast<int64_t>(sizes[0]), static_cast<int64_t>(sizes[1])};
    return tables_.emplace(table, Table{std::move(dataset), shape, dimensions}).first->second;
  }

 private:
  static hid_t open(const std::string& file) {
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // errors are ours to tell
    return H5Fopen(file.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  }

  const std::string name_;
  const Handle file_;
  std::map<std::string, Table> tables_;
};

Hdf5File::Hdf5File(std::filesystem::path file)
    : file_(std::move(file)), tables_(std::make_unique<Tables>(file_)) {}
Hdf5File::~Hdf5File() = default;

Hdf5File::Shape Hdf5File::shape(const std::string& table) { return tables_->table(table).shape; }

void Hdf5File::read_row(const std::string& table, int64_t row, int64_t* into) {
  const Tables::Table& from = tables_->table(table);
  PW_CHECK(0 <= row && row < from.shape.rows, "row " << row << " of " << from.shape.rows);
  const std::array<hsize_t, kMostDimensions> first = {static_cast<hsize_t>(row), 0};
  const std::array<hsize_t, kMostDimensions> size = {1, static_cast<hsize_t>(from.shape.columns)};
  const Handle there(H5Dget_space(from.dataset.id()), H5Sclose);
  const Handle here(H5Screate_simple(from.dimensions, size.data(), nullptr), H5Sclose);
  if (H5Sselect_hyperslab(there.id(), H5S_SELECT_SET, first.data(), nullptr, size.data(), nullptr) < 0 ||
      H5Dread(from.dataset.id(), H5T_NATIVE_INT64, here.id(), there.id(), H5P_DEFAULT, into) < 0) {
    throw RunError(file_.string() + ": row " + std::to_string(row) + " of '" + table + "' cannot be read",
                   "Is the file damaged, or compressed in a way that this HDF5 does not know?");
  }
}

}  // namespace pipewright
