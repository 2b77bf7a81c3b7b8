// Weight versions of a stage: each is its own list of leaf tensors.
//
// A step makes the next list and leaves the old one alone, so stashing a version is holding a pointer to it:
// a minibatch in flight does, and when the last one has gone through its backward the version's memory is
// free again. Nothing is copied for stashing and nothing is swapped under autograd.
//
// Where updates are made in place there is one version instead: a step writes to its tensors under the
// minibatches in flight, whose backwards read what is there then. Copies in bfloat16 stay as a forward read
// them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace pipewright {

struct WeightVersion {
  int64_t number = 0;               ///< updates that went into it
  std::vector<at::Tensor> weights;  ///< leaves, in the order of StageProgram::parameters()
  /// As many, or none: the weights in bfloat16 (models/run/weight_copies.h), undefined but for those that are
  /// asked for.
  std::vector<at::Tensor> copies = {};
};

/// Versions are counted per stage and rank; one thread.
class WeightVersions {
 public:
  /// `number`: updates that went into the first version. `copied`: positions of the weights of which every
  /// version has a copy. `in_place`: whoever holds the latest version sees the next one in it.
  explicit WeightVersions(std::vector<at::Tensor> first, int64_t number = 0, std::vector<size_t> copied = {},
                          bool in_place = false);

  std::shared_ptr<const WeightVersion> latest() const { return latest_; }
  /// How many forwards will read each version from now on, by version number. A version that is no longer the
  /// latest is kept for them; those that nobody will read go with publish(). `older`: versions before the
  /// latest, for forwards that read them.
  void expect(std::map<int64_t, int64_t> readers, std::map<int64_t, std::vector<at::Tensor>> older = {});
  /// The latest version, or one that is kept for a forward; else null.
  std::shared_ptr<const WeightVersion> find(int64_t number) const;
  /// For a forward that expect() announced. Hold it until the backward of that minibatch has ended.
  std::shared_ptr<const WeightVersion> read(int64_t number);
  struct Room {
    std::vector<at::Tensor> weights;
    std::vector<at::Tensor> copies;  ///< to be written too, where they are defined
    bool in_place = false;           ///< weights are the latest version's memory, without its autograd
  };
  /// Where the next version's weights `which` (positions) can be written, so that no memory comes and goes
  /// with every update: the latest version's own tensors if nobody holds or will read them (then it is over
  /// once they are written), else those of a version that has died, else undefined ones. Copies have a place
  /// in every case. In place: the latest version's own, unless a forward to come will read it as it is.
  Room room(const std::vector<size_t>& which);
  /// From now on the memory of a dead version is kept for the next update even where the latest one is
  /// changed in place: versions then take turns with as many places as there ever were of them at a time, and
  /// lie nowhere else.
  void keep_places() { books_->keeps_places = true; }
  /// Makes `weights` the latest version, with `number` updates, whatever there was. Nothing is in flight.
  void replace(std::vector<at::Tensor> weights, int64_t number);
  /// Makes `weights` the latest version, with these copies of them.
  void publish(std::vector<at::Tensor> weights, std::vector<at::Tensor> copies = {});
  /// The next version has been written to a room in place; these are the copies of all its weights.
  void publish_in_place(std::vector<at::Tensor> copies);
  /// In place: `version`, which somebody holds, becomes the latest one where it is an older one, of a
  /// checkpoint.
  void bring_up_to_date(const WeightVersion& version);
  /// Somebody has written to the latest version's weights: copies it anew. Nobody has read it yet.
  void changed();

  /// In place: until hide(), the weights `which` of the latest version hold what `write` makes of the current
  /// ones, which wait beside them, and copies are of these. Nobody reads them meanwhile but who is to see it.
  using Write =
      std::function<void(const std::vector<at::Tensor>& current, const std::vector<at::Tensor>& shown)>;
  void show(const std::vector<size_t>& which, const Write& write);
  void hide(const std::vector<size_t>& which);

  int64_t updates() const { return latest_->number; }
  int64_t live() const { return books_->live; }  ///< versions held by anyone, the latest included
  int64_t peak_live() const { return peak_live_; }

 private:
  std::shared_ptr<WeightVersion> make(int64_t number, std::vector<at::Tensor> weights,
                                      std::vector<at::Tensor> copies);

  // Versions outlive this object if a minibatch holds them.
  struct Books {
    int64_t live = 0;
    Room spare;  ///< of a version that died, where nobody else holds it
    bool keeps_places = false;
  };
  const std::vector<size_t> copied_;
  const bool in_place_;

  std::shared_ptr<Books> books_ = std::make_shared<Books>();
  int64_t peak_live_ = 0;
  std::shared_ptr<WeightVersion> latest_;
  std::map<int64_t, int64_t> readers_;                          // forwards to come, by version
  std::vector<at::Tensor> aside_, copies_aside_;                // the current ones, while others are shown
  std::map<int64_t, std::shared_ptr<WeightVersion>> kept_for_;  // older ones that they read
};

}  // namespace pipewright
