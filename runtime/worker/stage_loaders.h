// What the stages of a rank read of a data set, each in the order of its own forwards.
#pragma once

#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "graph/data_workers.h"
#include "runtime/data/dataset.h"
#include "runtime/data/loader.h"
#include "runtime/data/normalised.h"
#include "runtime/transport/copy_engine.h"
#include "runtime/worker/worker.h"

namespace pipewright {

/// How a rank loads: with whom, and what is called around the wait for samples.
struct Loading {
  DataWorkers workers;
  int64_t ahead = 0;  ///< minibatches in advance, where these are not handed out
  std::function<void(int64_t minibatch)> begin;
  std::function<void()> end;
};

/// The minibatches of a replica in one span, which are `turns`' of its place, in the order of its forwards;
/// nothing at the end. May wait where minibatches are handed out.
std::function<std::optional<int64_t>()> minibatches_of(const StageReplica& stage, const StageTurns& turns,
                                                       const std::shared_ptr<const PipelineSpan>& span);

/// The same as what to load, one after the other.
RequestSource requests_of(const StageReplica& stage, const StageTurns& turns,
                          const std::shared_ptr<const PipelineSpan>& span,
                          const std::function<LoadRequest(int64_t)>& request);

/// Which of the set's fields these are; it has all of them.
std::vector<size_t> field_numbers(const Dataset& data, const std::vector<std::string>& names);

/// Of a stage on a device that trains whole minibatches, fields are uploaded ahead, beside what the device
/// computes: at most kUploadsAhead minibatches of those that are made, in a stream of their own. Samples
/// travel to a device as they are stored; fields are made of them there when they are asked for, so that what
/// is ahead takes no more memory than that.
class StageLoaders {
 public:
  /// For one span of the worker's, to train, or to evaluate with these programs. `request(k)`: what minibatch
  /// k consists of; `but`: a stage whose fields come from elsewhere. Borrows the data set.
  StageLoaders(const Dataset& data, const Worker& worker, const std::shared_ptr<const PipelineSpan>& span,
               const std::function<LoadRequest(int64_t)>& request, Loading loading,
               std::optional<int64_t> but = {},
               const std::function<const StageProgram&(int64_t stage)>& evaluated = {});
  /// The fields of the stage's next minibatch, which is k. The stage has some. On the CPU or on the stage's
  /// device, where what the current stream is given from now on may read them; there always if they are
  /// normalised there.
  std::vector<at::Tensor> next(int64_t stage, int64_t k);

 private:
  struct Uploaded {
    std::vector<at::Tensor> fields;
    std::shared_ptr<StreamPoint> end;
    std::exception_ptr error;  // instead: why the samples could not be read
  };
  struct Source {
    std::unique_ptr<Loader> loader;
    at::Device device = at::kCPU;
    std::optional<FieldsOnDevice> fields;  // made of what is loaded; none: the stage is on the CPU
    std::unique_ptr<CopyEngine> uploads;   // null: none is ahead
    std::deque<Uploaded> ahead{};
    void upload_next();
  };
  Loading loading_;
  std::map<int64_t, Source> sources_;  // by stage
};

}  // namespace pipewright
