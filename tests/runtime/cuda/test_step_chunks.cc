// What the kernels do, thread by thread, on the host: the very functions that the device runs, against the
// step of the CPU.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "runtime/cuda/step_tables.h"
#include "runtime/update/step_kernels.h"

using namespace pipewright;

namespace {

using Draw = std::mt19937_64;

int64_t drawn(Draw& draw, int64_t below) {
  return static_cast<int64_t>(draw() % static_cast<uint64_t>(below));
}

// A tensor that begins `offset` elements behind an aligned address.
at::Tensor drawn_tensor(Draw& draw, int64_t size, int64_t offset, at::ScalarType dtype, double low) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(draw());
  const at::Tensor numbers = at::rand({size + offset}, generator, at::TensorOptions().dtype(at::kFloat));
  return (numbers * (1 - low) + low).to(dtype).narrow(0, offset, size);
}

struct Case {
  std::vector<StepTensor> tensors;
  std::vector<StepTensor> copies;  // stepped by the CPU
};

template <typename S>
Case drawn_case(Draw& draw, int64_t count, bool first, bool second) {
  constexpr auto kType = c10::CppTypeToScalarType<S>::value;
  Case drawn_case;
  for (int64_t i = 0; i < count; ++i) {
    const std::vector<int64_t> most = {1, 9, 300, count > 20 ? 100 : 3 * kChunkElements<S>};
    const int64_t size = drawn(draw, most[static_cast<size_t>(drawn(draw, 4))] + 1);
    const auto offset = [&] { return drawn(draw, 2) == 0 ? 0 : drawn(draw, 5); };
    StepTensor tensor;
    tensor.old = drawn_tensor(draw, size, offset(), kType, -1);
    tensor.gradient = drawn_tensor(draw, size, offset(), kType, -1);
    tensor.next = drawn(draw, 4) == 0 ? tensor.old : drawn_tensor(draw, size, offset(), kType, -1);
    if (first) tensor.first = drawn_tensor(draw, size, offset(), kType, -1);
    if (second) tensor.second = drawn_tensor(draw, size, offset(), kType, 0);
    if (kType == at::kFloat && drawn(draw, 2) == 0)
      tensor.copy = drawn_tensor(draw, size, offset(), at::kBFloat16, -1);
    tensor.index = static_cast<int32_t>(i);
    if (size > 0 && drawn(draw, 8) == 0) {
      tensor.gradient[drawn(draw, size)] = drawn(draw, 2) == 0 ? std::numeric_limits<double>::infinity()
                                                               : std::numeric_limits<double>::quiet_NaN();
    }
    StepTensor copy = tensor;
    copy.old = tensor.old.clone();
    copy.next = at::empty_like(copy.old);
    if (first) copy.first = tensor.first.clone();
    if (second) copy.second = tensor.second.clone();
    drawn_case.tensors.push_back(tensor);
    drawn_case.copies.push_back(copy);
  }
  return drawn_case;
}

struct Found {
  int32_t not_finite = 0;
  double square_sum = 0;
};

// A launch: all threads of all blocks, in any order.
template <typename S, typename Rule>
Found run_launches(const std::vector<StepTensor>& tensors, const Rule& rule) {
  Found found;
  for_each_step_table<S>(tensors, [&](StepTable<S>& table) {
    double unused = 0;
    table.square_sums = &unused;
    for (int32_t chunk = table.chunks.count() - 1; chunk >= 0; --chunk) {
      for (int thread = 0; thread < kBlockThreads; ++thread) {
        const GradientsSeen seen = step_chunk(table, rule, chunk, thread, kBlockThreads);
        found.square_sum += seen.square_sum;
        if (seen.finite) continue;
        const int32_t tensor = place_of(table.chunks, chunk, kChunkElements<S>).tensor;
        found.not_finite = std::max(found.not_finite, table.index[tensor] + 1);
      }
    }
  });
  return found;
}

// The step of runtime/update/update_rule.cc: weights of less than 32 bits as floats. step_one(arrays, count)
// tells whether all gradients are finite.
template <typename S, typename StepOne>
Found run_cpu(const std::vector<StepTensor>& tensors, const StepOne& step_one) {
  using T = typename Computed<S>::Type;
  Found found;
  for (const StepTensor& tensor : tensors) {
    const auto computed = [](const at::Tensor& t) {
      return t.defined() ? t.to(c10::CppTypeToScalarType<T>::value).contiguous() : at::Tensor();
    };
    const at::Tensor places[] = {computed(tensor.old), computed(tensor.gradient), computed(tensor.next),
                                 computed(tensor.first), computed(tensor.second)};
    const auto data = [](const at::Tensor& t) { return t.defined() ? t.data_ptr<T>() : nullptr; };
    const StepArrays<T> arrays{data(places[0]), data(places[1]), data(places[2]), data(places[3]),
                               data(places[4])};
    if (!step_one(arrays, tensor.old.numel())) found.not_finite = tensor.index + 1;
    found.square_sum += places[1].to(at::kDouble).square().sum().template item<double>();
    tensor.next.copy_(places[2]);
    if (tensor.first.defined()) tensor.first.copy_(places[3]);
    if (tensor.second.defined()) tensor.second.copy_(places[4]);
  }
  return found;
}

// The same numbers, and NaNs in the same places (their signs and payloads may differ).
bool same_numbers(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined()) return !b.defined();
  return a.isnan().equal(b.isnan()) && a.nan_to_num(0, 1, -1).equal(b.nan_to_num(0, 1, -1));
}

template <typename S, typename Rule, typename StepOne>
void check(Case drawn_case, const Rule& rule, const StepOne& step_one) {
  const Found found = run_launches<S>(drawn_case.tensors, rule);
  const Found expected = run_cpu<S>(drawn_case.copies, step_one);
  CHECK(found.not_finite == expected.not_finite);
  if (std::isfinite(expected.square_sum)) {
    CHECK(found.square_sum == Approx(expected.square_sum).epsilon(1e-12));
  } else {
    CHECK_FALSE(std::isfinite(found.square_sum));
  }
  for (size_t i = 0; i < drawn_case.tensors.size(); ++i) {
    CAPTURE(i, drawn_case.tensors[i].old.numel());
    CHECK(same_numbers(drawn_case.tensors[i].next, drawn_case.copies[i].next));
    if (drawn_case.tensors[i].copy.defined())
      CHECK(same_numbers(drawn_case.tensors[i].copy, drawn_case.copies[i].next.to(at::kBFloat16)));
    CHECK(same_numbers(drawn_case.tensors[i].first, drawn_case.copies[i].first));
    CHECK(same_numbers(drawn_case.tensors[i].second, drawn_case.copies[i].second));
  }
}

template <typename S>
void check_sgd(Draw& draw, int64_t count) {
  using T = typename Computed<S>::Type;
  const auto momentum = static_cast<Momentum>(drawn(draw, 5));
  const bool decay = drawn(draw, 2) == 0;
  const SgdFactors<T> factors = rounded<T>(SgdFactors<double>{0.1, 0.9, 0.01});
  CAPTURE(static_cast<int>(momentum), decay);
  check<S>(drawn_case<S>(draw, count, momentum != Momentum::kNone, false),
           SgdRule<T>{factors, momentum, decay}, [&](const StepArrays<T>& arrays, int64_t size) {
             return sgd_step(factors, momentum, decay, arrays, 0, size, Stores::kOrdinary);
           });
}

template <typename S>
void check_adam(Draw& draw, int64_t count) {
  using T = typename Computed<S>::Type;
  const auto decay = static_cast<Decay>(drawn(draw, 3));
  const double ahead = drawn(draw, 2) == 0 ? 0 : 0.02;  // NAdam's
  const AdamFactors<T> factors =
      rounded<T>(AdamFactors<double>{0.999, 0.1, 0.999, 0.001, 0.0447, 1e-8, 0.01, ahead});
  CAPTURE(static_cast<int>(decay), ahead);
  check<S>(drawn_case<S>(draw, count, true, true), AdamRule<T>{factors, decay},
           [&](const StepArrays<T>& arrays, int64_t size) {
             return adam_step(factors, decay, arrays, 0, size, Stores::kOrdinary);
           });
}

template <typename S>
void check_lion(Draw& draw, int64_t count) {
  using T = typename Computed<S>::Type;
  const LionFactors<T> factors = rounded<T>(LionFactors<double>{0.999, 0.9, 0.1, 0.99, 0.01, 0.02});
  check<S>(drawn_case<S>(draw, count, true, false), LionRule<T>{factors},
           [&](const StepArrays<T>& arrays, int64_t size) {
             return lion_step(factors, arrays, 0, size, Stores::kOrdinary);
           });
}

}  // namespace

TEST_CASE(
    "step kernels: the threads of a launch make the bits of the CPU's step, whatever shapes and alignments") {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    const int64_t count = 1 + drawn(draw, 6);
    check_sgd<float>(draw, count);
    check_sgd<double>(draw, count);
    check_sgd<c10::BFloat16>(draw, count);
    check_sgd<c10::Half>(draw, count);
    check_adam<float>(draw, count);
    check_adam<double>(draw, count);
    check_adam<c10::BFloat16>(draw, count);
    check_adam<c10::Half>(draw, count);
    check_lion<float>(draw, count);
    check_lion<double>(draw, count);
    check_lion<c10::BFloat16>(draw, count);
    check_lion<c10::Half>(draw, count);
  }
}

TEST_CASE("step kernels: more tensors than a launch holds, empty ones among them, take another launch") {
  Draw draw(1);
  check_sgd<float>(draw, 1300);
  check_adam<float>(draw, 513);
}

TEST_CASE("step kernels: every element of a table belongs to one thread of one chunk") {
  Draw draw(2);
  for (int round = 0; round < 50; ++round) {
    Chunks<8> chunks;
    std::vector<int64_t> sizes;
    constexpr int64_t kChunk = 64;
    while (true) {
      const int64_t size = drawn(draw, 3) == 0 ? 0 : drawn(draw, 300);
      if (!chunks.add(size, kChunk)) break;
      sizes.push_back(size);
    }
    CHECK(sizes.size() == 8);
    std::multiset<std::pair<int64_t, int64_t>> visited;
    for (int32_t chunk = 0; chunk < chunks.count(); ++chunk) {
      const ChunkPlace place = place_of(chunks, chunk, kChunk);
      const bool packs = drawn(draw, 2) == 0;
      for (int thread = 0; thread < 5; ++thread) {
        for_my_share<float>(
            place.begin, place.end, thread, 5, packs,
            [&](int64_t i) {
              for (int64_t j = 0; j < Pack<float>::kCount; ++j) visited.insert({place.tensor, i + j});
            },
            [&](int64_t i) {
              visited.insert({place.tensor, i});
            });
      }
    }
    std::multiset<std::pair<int64_t, int64_t>> all;
    for (size_t t = 0; t < sizes.size(); ++t)
      for (int64_t i = 0; i < sizes[t]; ++i) all.insert({static_cast<int64_t>(t), i});
    CHECK(visited == all);
  }
}

TEST_CASE("copy kernels: tensors of any dtype, size and alignment are packed into one and come out again") {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    const at::ScalarType dtypes[] = {at::kFloat, at::kBFloat16, at::kByte, at::kLong};
    std::vector<at::Tensor> parts;
    std::vector<at::Tensor> places;
    int64_t bytes = 0;
    for (int64_t i = 0; i < (seed == 0 ? 1500 : 5); ++i) {
      const int64_t size = drawn(draw, seed == 0 ? 20 : 70'000);
      const at::Tensor numbers = at::arange(size + 3).to(dtypes[drawn(draw, 4)]);
      parts.push_back(numbers.narrow(0, drawn(draw, 4), size));
      bytes += static_cast<int64_t>(parts.back().nbytes()) + drawn(draw, 3);
    }
    const at::Tensor flat = at::zeros({bytes}, at::kByte);
    int64_t begin = 0;
    std::vector<at::Tensor> outs;
    for (const at::Tensor& part : parts) {
      places.push_back(flat.narrow(0, begin, static_cast<int64_t>(part.nbytes())));
      begin += static_cast<int64_t>(part.nbytes());
      outs.push_back(at::empty_like(part));
    }
    const auto launch = [](const CopyTable& table) {
      for (int32_t chunk = 0; chunk < table.chunks.count(); ++chunk)
        for (int thread = 0; thread < kBlockThreads; ++thread)
          copy_chunk(table, chunk, thread, kBlockThreads);
    };
    for_each_copy_table(parts, places, launch);
    for_each_copy_table(places, outs, launch);
    for (size_t i = 0; i < parts.size(); ++i) CHECK(outs[i].equal(parts[i]));
  }
}
