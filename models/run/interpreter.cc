#include "models/run/interpreter.h"

#include <utility>

#include "models/run/segment_run.h"
#include "models/run/segment_steps.h"

namespace pipewright {

std::recursive_mutex& generator_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

struct Segment::Implementation {
  SegmentSteps steps;
  std::vector<at::Tensor> constants = {};  ///< by constant_slots; none before the first forward has ended
};

Segment::Segment(const Graph& graph, const std::vector<size_t>& nodes, std::vector<std::string> outputs,
                 at::Device device, size_t keeping_buffers)
    : implementation_(new Implementation{
          .steps = prepare_steps(graph, nodes, std::move(outputs), device, keeping_buffers)}) {}

Segment::~Segment() = default;
Segment::Segment(Segment&&) noexcept = default;
Segment& Segment::operator=(Segment&&) noexcept = default;

const std::vector<size_t>& Segment::nodes() const { return implementation_->steps.nodes; }
const std::vector<std::string>& Segment::inputs() const { return implementation_->steps.inputs; }
const std::vector<std::string>& Segment::parameters() const { return implementation_->steps.parameters; }
const std::vector<std::string>& Segment::buffers() const { return implementation_->steps.buffers; }
const std::vector<std::string>& Segment::outputs() const { return implementation_->steps.outputs; }
const std::vector<size_t>& Segment::copied() const { return implementation_->steps.copied; }
const std::string& Segment::label(size_t position) const {
  return implementation_->steps.steps.at(position).label;
}
const std::vector<size_t>& Segment::random_nodes() const { return implementation_->steps.random; }
const std::vector<at::Tensor>& Segment::constants() const { return implementation_->constants; }

uint64_t Segment::seed_of(size_t i, RandomKey key) const {
  const SegmentSteps& all = implementation_->steps;
  return pipewright::seed_of(all.steps[all.random.at(i)], key);
}

std::vector<at::Tensor> Segment::forward(std::vector<at::Tensor> inputs,
                                         const std::vector<at::Tensor>& parameters,
                                         const std::vector<at::Tensor>& buffers, RandomKey key,
                                         const NodeObserver* observer,
                                         const std::vector<at::Tensor>& copies) const {
  const SegmentSteps& steps = implementation_->steps;
  std::vector<at::Tensor>& constants = implementation_->constants;
  SegmentRun run(steps, std::move(inputs), parameters, buffers, key, observer, copies, constants);
  run.run();
  if (constants.empty()) constants = run.values_in(steps.constant_slots);
  return run.values_in(steps.output_slots);
}

}  // namespace pipewright
