#include "models/run/segment_run.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "graph/error.h"
#include "graph/printable.h"
#include "models/memory/memory_meter.h"
#include "models/run/random_key.h"
#include "models/run/weight_copies.h"

namespace pipewright {
namespace {

/// A device's default generator with another one's state in it: what draws from the default draws from that.
class BorrowedStream {
 public:
  BorrowedStream(at::Generator generator, const at::Generator& stream)
      : generator_(std::move(generator)), own_(generator_.graphsafe_get_state()) {
    generator_.graphsafe_set_state(stream);
  }
  ~BorrowedStream() { generator_.graphsafe_set_state(own_); }
  BorrowedStream(const BorrowedStream&) = delete;
  BorrowedStream& operator=(const BorrowedStream&) = delete;

 private:
  at::Generator generator_;
  at::Generator own_;
};

/// Autocast on this thread. The backward runs without: autograd has noted the casts. Without the
/// cache of casts, which all threads of the process share: whoever empties it takes the casts of ranks that
/// are other threads away, and how often a weight that is read twice is cast would depend on the timing.
class AutocastScope {
 public:
  AutocastScope(at::ScalarType dtype, at::DeviceType device) : device_(device) {
    was_on_ = at::autocast::is_autocast_enabled(device_);
    old_dtype_ = at::autocast::get_autocast_dtype(device_);
    was_cached_ = at::autocast::is_autocast_cache_enabled();
    at::autocast::set_autocast_cache_enabled(false);
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, dtype);
  }
  ~AutocastScope() {
    at::autocast::set_autocast_cache_enabled(was_cached_);
    at::autocast::set_autocast_enabled(device_, was_on_);
    at::autocast::set_autocast_dtype(device_, old_dtype_);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  at::DeviceType device_;
  bool was_on_ = false;
  bool was_cached_ = true;
  at::ScalarType old_dtype_ = at::kBFloat16;
};

/// What a node says of the way it runs, while it does.
class StepScope {
 public:
  StepScope(const SegmentStep& step, at::DeviceType device) {
    if (step.constant) memory_.emplace(MemoryPurpose::kOther);
    if (!step.gradient) no_gradient_.emplace();
    if (step.without_autocast) no_autocast_.emplace(c10::autocast_dispatch_keyset);
    if (step.autocast) autocast_.emplace(*step.autocast, device);
  }

 private:
  std::optional<MemoryScope> memory_;
  std::optional<at::NoGradGuard> no_gradient_;
  std::optional<c10::impl::ExcludeDispatchKeyGuard> no_autocast_;
  std::optional<AutocastScope> autocast_;
};

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string shape_text(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  std::string text = std::string(c10::toString(tensor.scalar_type())) + "(";
  for (int64_t i = 0; i < tensor.dim(); ++i) text += (i ? ", " : "") + std::to_string(tensor.size(i));
  return text + ")";
}

/// Reports what an operator threw as ours: one line that says where, with the shapes of what it was given.
[[noreturn]] void rethrow(const SegmentStep& step, const c10::Stack& stack, const std::string& message) {
  std::string given;
  for (const auto& fill : step.fills) {
    if (fill.position >= stack.size()) break;
    const c10::IValue& value = stack[fill.position];
    const std::string& name = step.op.schema().arguments()[fill.position].name();
    if (value.isTensor()) given += (given.empty() ? "" : ", ") + name + " " + shape_text(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& one : value.toTensorVector())
        given += (given.empty() ? "" : ", ") + name + " " + shape_text(one);
  }
  const bool memory = message.find("allocate memory") != std::string::npos;
  throw RunError(
      printable(step.label + " failed: " + first_line(message) + (given.empty() ? "" : "; given " + given)),
      memory ? "Likely cause: the minibatch does not fit the memory. Next: a smaller --batch-size, or a plan "
               "with more stages."
             : "");
}

}  // namespace

uint64_t seed_of(const SegmentStep& step, RandomKey key) {
  const uint64_t whole = stream_key(key.seed, key.minibatch, step.name_hash);
  return key.first_sample == 0 ? whole : stream_key(whole, key.first_sample, step.name_hash);
}

SegmentRun::SegmentRun(const SegmentSteps& steps, std::vector<at::Tensor> inputs,
                       const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& buffers,
                       RandomKey key, const NodeObserver* observer, const std::vector<at::Tensor>& copies,
                       const std::vector<at::Tensor>& constants)
    : steps_(steps),
      parameters_(parameters),
      buffers_(buffers),
      key_(key),
      observer_(observer),
      copies_(copies),
      folded_(!constants.empty()),
      values_(std::move(inputs)) {
  PW_CHECK_EQ(values_.size(), steps.inputs.size());
  PW_CHECK_EQ(parameters.size(), steps.parameters.size());
  PW_CHECK_EQ(buffers.size(), steps.buffers.size());
  if (!copies.empty()) PW_CHECK_EQ(copies.size(), parameters.size());
  values_.resize(steps.value_count);
  stack_.reserve(steps.deepest_stack);
  for (size_t i = 0; i < constants.size(); ++i) values_[steps.constant_slots[i]] = constants[i];
}

void SegmentRun::run() {
  std::optional<AutocastScope> autocast;
  if (steps_.autocast) autocast.emplace(at::kBFloat16, steps_.device.type());
  for (size_t i = 0; i < steps_.steps.size(); ++i) {
    if (observer_ && observer_->before) observer_->before(i);
    if (steps_.steps[i].constant && folded_) {
      show_constant(i);
    } else {
      run_step(i);
    }
    if (observer_ && observer_->after) observer_->after(i);
  }
}

std::vector<at::Tensor> SegmentRun::values_in(const std::vector<uint32_t>& slots) const {
  std::vector<at::Tensor> found;
  found.reserve(slots.size());
  for (const uint32_t slot : slots) found.push_back(values_[slot]);
  return found;
}

void SegmentRun::run_step(size_t i) {
  const SegmentStep& step = steps_.steps[i];
  fill_stack(step);
  const StepScope scope(step, steps_.device.type());
  if (step.writes.empty() || !keep_buffers(step)) {
    call(step);
  } else if (step.random) {
    ++next_random_;
  }
  keep_results(i);
}

void SegmentRun::show_constant(size_t i) const {
  if (!observer_ || !observer_->made) return;
  const std::vector<uint32_t>& results = steps_.steps[i].results;
  for (size_t n = 0; n < results.size(); ++n) {
    const uint32_t slot = results[n];
    if (slot != kDropped && values_[slot].defined()) observer_->made(i, n, values_[slot]);
  }
}

void SegmentRun::fill_stack(const SegmentStep& step) {
  // One by one: a range of two or three costs more to insert than what is in it.
  size_t next = 0;
  for (const StackFill& fill : step.fills) {
    for (; next < fill.position; ++next) stack_.push_back(step.stack[next]);
    ++next;
    switch (fill.kind) {
      case TensorPlace::Kind::kTensor:
        stack_.emplace_back(take(fill.sources[0]));
        break;
      case TensorPlace::Kind::kTensors: {
        c10::List<at::Tensor> list;
        list.reserve(fill.sources.size());
        for (const StepInput& source : fill.sources) list.push_back(take(source));
        stack_.emplace_back(std::move(list));
        break;
      }
      case TensorPlace::Kind::kOptionalTensors: {
        c10::List<std::optional<at::Tensor>> list;
        list.reserve(fill.sources.size());
        for (const StepInput& source : fill.sources) {
          std::optional<at::Tensor> one;
          if (source.kind != StepInput::Kind::kNone) one = take(source);
          list.push_back(std::move(one));
        }
        stack_.emplace_back(std::move(list));
        break;
      }
    }
  }
  for (; next < step.stack.size(); ++next) stack_.push_back(step.stack[next]);
}

at::Tensor SegmentRun::take(const StepInput& source) {
  switch (source.kind) {
    case StepInput::Kind::kValue:
      return source.last ? std::move(values_[source.index]) : values_[source.index];
    case StepInput::Kind::kCopied:
      if (!copies_.empty() && copies_[source.index].defined())
        return read_from_copy(parameters_[source.index], copies_[source.index]);
      [[fallthrough]];
    case StepInput::Kind::kParameter:
      return parameters_[source.index];
    case StepInput::Kind::kBuffer:
      return buffers_[source.index];
    case StepInput::Kind::kNone:
      break;
  }
  return at::Tensor();
}

bool SegmentRun::is_of_buffer(const at::Tensor& tensor) const {
  return tensor.defined() && std::any_of(buffers_.begin(), buffers_.end(), [&](const at::Tensor& buffer) {
           return buffer.is_alias_of(tensor);
         });
}

bool SegmentRun::keep_buffers(const SegmentStep& step) {
  if (step.changes_shapes) {
    for (const auto& write : step.writes)
      if (stack_[write.position].isTensor() && is_of_buffer(stack_[write.position].toTensor()))
        stack_[write.position] = stack_[write.position].toTensor().alias();
    return false;
  }
  bool only_buffers = step.makes_only_what_it_writes;
  for (const auto& write : step.writes) {
    c10::IValue& written = stack_[write.position];
    if (written.isTensor() && is_of_buffer(written.toTensor())) continue;
    only_buffers = only_buffers && written.isNone();
  }
  if (only_buffers) {
    c10::Stack results(step.op.schema().returns().size());
    for (const auto& write : step.writes)
      for (const size_t result : write.results) results[result] = stack_[write.position];
    stack_ = std::move(results);
    return true;
  }
  const auto copied = [&](const at::Tensor& tensor) {
    return is_of_buffer(tensor) ? tensor.clone() : tensor;
  };
  for (const auto& write : step.writes) {
    c10::IValue& written = stack_[write.position];
    if (written.isTensor()) {
      written = copied(written.toTensor());
    } else if (written.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : written.toTensorVector()) list.push_back(copied(tensor));
      written = std::move(list);
    }
  }
  return false;
}

void SegmentRun::call(const SegmentStep& step) {
  try {
    if (step.guard != nullptr) step.guard(stack_);
    if (step.random) {
      call_random(step);
    } else {
      step.op.callBoxed(stack_);
    }
  } catch (const c10::Error& error) {
    rethrow(step, stack_, error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    rethrow(step, stack_, "cannot allocate memory");
  } catch (const std::exception& error) {
    rethrow(step, stack_, error.what());
  }
}

void SegmentRun::call_random(const SegmentStep& step) {
  const std::lock_guard<std::recursive_mutex> lock(generator_mutex());
  at::Generator generator = at::globalContext().defaultGenerator(steps_.device);
  std::optional<BorrowedStream> borrowed;
  if (key_.streams) {
    borrowed.emplace(generator, key_.streams->at(next_random_));
  } else {
    const std::lock_guard<std::mutex> guard(generator.mutex());
    // The engine takes the low 32 bits: enough, as only chance ties of single nodes would be alike.
    generator.set_current_seed(seed_of(step, key_));
  }
  ++next_random_;
  step.op.callBoxed(stack_);
}

void SegmentRun::keep_results(size_t i) {
  const SegmentStep& step = steps_.steps[i];
  size_t made = 0;
  const auto keep = [&](at::Tensor tensor) {
    if (observer_ && observer_->made) observer_->made(i, made, tensor);
    if (made < step.results.size() && step.results[made] != kDropped)
      values_[step.results[made]] = std::move(tensor);
    ++made;
  };
  for (c10::IValue& result : stack_) {
    if (result.isTensor() || result.isNone()) {
      keep(result.isNone() ? at::Tensor() : std::move(result).toTensor());
    } else {
      // An operator that makes a list (split, unbind) makes one value per element.
      for (const c10::IValue& one : result.toListRef()) keep(one.toTensor());
    }
  }
  stack_.clear();
  if (made != step.results.size())
    throw RunError(step.label + " made " + std::to_string(made) + " tensors; the graph names " +
                   std::to_string(step.results.size()));
}

}  // namespace pipewright
