// Update rules against the same arithmetic written one tensor at a time, bit for bit.
#include "runtime/update/update_rule.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "graph/error.h"

using namespace pipewright;

namespace {

std::vector<at::Tensor> random_tensors(uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return {at::randn({33, 7}, generator, at::TensorOptions()), at::randn({5}, generator, at::TensorOptions()),
          at::randn({1}, generator, at::TensorOptions())};
}

}  // namespace

TEST_CASE("sgd: decay, momentum, Nesterov, old weights stay, new ones are leaves") {
  OptimizerSettings settings;
  settings.momentum = GENERATE(0.0, 0.9);
  settings.weight_decay = GENERATE(0.0, 0.01);
  settings.nesterov = settings.momentum > 0 && GENERATE(false, true);
  const auto rule = make_update_rule(settings);
  std::vector<at::Tensor> weights = random_tensors(1);
  std::vector<at::Tensor> velocity(3);
  for (uint64_t step = 0; step < 4; ++step) {
    const double rate = 0.1 / (1 + static_cast<double>(step));
    const auto before = weights[0].clone();
    const auto next = rule->step(weights, random_tensors(10 + step), rate);
    CHECK(weights[0].equal(before));
    const auto gradients = random_tensors(10 + step);
    for (size_t i = 0; i < 3; ++i) {
      const at::Tensor old = weights[i].detach();
      at::Tensor d = settings.weight_decay ? gradients[i].add(old, settings.weight_decay) : gradients[i];
      if (settings.momentum) {
        velocity[i] = velocity[i].defined() ? velocity[i].mul(settings.momentum).add(d) : d;
        d = settings.nesterov ? d.add(velocity[i], settings.momentum) : velocity[i];
      }
      CHECK(next[i].equal(old.add(d, -rate)));
      CHECK(next[i].is_leaf());
      CHECK(next[i].requires_grad());
    }
    weights = next;
  }
}

TEST_CASE("adam and adamw follow their formula") {
  OptimizerSettings settings;
  settings.name = GENERATE("adam", "adamw");
  settings.weight_decay = 0.05;
  const auto rule = make_update_rule(settings);
  std::vector<at::Tensor> weights = random_tensors(2);
  std::vector<at::Tensor> m(3), v(3);
  for (size_t i = 0; i < 3; ++i) m[i] = v[i] = at::zeros_like(weights[i]);
  for (uint64_t step = 1; step <= 4; ++step) {
    const double rate = 0.01;
    const auto next = rule->step(weights, random_tensors(20 + step), rate);
    const auto gradients = random_tensors(20 + step);
    for (size_t i = 0; i < 3; ++i) {
      at::Tensor w = weights[i].detach();
      at::Tensor g = gradients[i];
      if (settings.name == "adam") g = g + settings.weight_decay * w;
      if (settings.name == "adamw") w = w * (1 - rate * settings.weight_decay);
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.999 * v[i] + 0.001 * g * g;
      const at::Tensor expected = w - rate * (m[i] / (1 - std::pow(0.9, step))) /
                                          ((v[i] / (1 - std::pow(0.999, step))).sqrt() + 1e-8);
      CHECK(at::allclose(next[i], expected, 1e-5, 1e-7));
    }
    weights = next;
  }
}

TEST_CASE("lion follows its formula, and what is no number stays visible") {
  OptimizerSettings settings;
  settings.name = "lion";
  settings.beta2 = 0.99;
  settings.weight_decay = GENERATE(0.0, 0.05);
  const auto rule = make_update_rule(settings);
  std::vector<at::Tensor> weights = random_tensors(2);
  std::vector<at::Tensor> m(3);
  for (size_t i = 0; i < 3; ++i) m[i] = at::zeros_like(weights[i]);
  for (uint64_t step = 1; step <= 4; ++step) {
    const double rate = 0.01;
    const auto next = rule->step(weights, random_tensors(20 + step), rate);
    const auto gradients = random_tensors(20 + step);
    for (size_t i = 0; i < 3; ++i) {
      const at::Tensor w = weights[i].detach();
      const at::Tensor direction = (0.9 * m[i] + 0.1 * gradients[i]).sign();
      m[i] = 0.99 * m[i] + 0.01 * gradients[i];
      CHECK(at::allclose(next[i], w - rate * (direction + settings.weight_decay * w), 1e-6, 1e-7));
      CHECK(at::allclose(rule->state().slots[0].second[i], m[i], 1e-6, 1e-7));
    }
    weights = next;
  }
  std::vector<at::Tensor> gradients = random_tensors(30);
  gradients[2][0] = std::nan("");
  const auto next = rule->step(weights, gradients, 0.01);
  CHECK(rule->not_finite() == std::optional<size_t>(2));
  CHECK(next[2].isnan().all().item<bool>());
  // A moment of 0 and a gradient of 0 have no sign.
  const auto fresh = make_update_rule(settings);
  const double kept = 1 - 0.01 * settings.weight_decay;
  CHECK(at::allclose(fresh->step({at::ones({3})}, {at::zeros({3})}, 0.01)[0], at::full({3}, kept)));
}

// Figures of torch.optim of PyTorch 2.11, float64: three weights of the same gradients after 1, 5 and 100
// updates.
struct Published {
  OptimizerSettings settings;
  std::vector<double> after[3];
};

void check_published(const Published& published) {
  const auto rule = make_update_rule(published.settings);
  const auto doubles = [](std::vector<double> numbers) { return at::tensor(numbers, at::kDouble); };
  std::vector<at::Tensor> weights = {doubles({0.5, -1.25, 2})};
  size_t next = 0;
  for (int t = 1; t <= 100; ++t) {
    const double scale = t <= 5 ? 1 : (t % 2 == 0 ? 1.0 : -1.0) / t;
    weights =
        rule->step(weights, {doubles({0.1 * t * scale, (-0.2 + 0.05 * t * t) * scale, scale / (t + 1)})},
                   published.settings.learning_rate);
    if (t != 1 && t != 5 && t != 100) continue;
    CAPTURE(published.settings.name, published.settings.weight_decay, t);
    const std::vector<double>& expected = published.after[next++];
    for (int64_t i = 0; i < 3; ++i)
      CHECK(weights[0][i].item<double>() == Approx(expected[static_cast<size_t>(i)]).epsilon(1e-7));
  }
}

TEST_CASE("nadam makes PyTorch's weights, its decay is decoupled") {
  OptimizerSettings settings;
  settings.name = "nadam";
  settings.learning_rate = 0.01;
  settings.beta1 = 0.99;
  check_published({settings,
                   {{0.48993440393141086, -1.239934403595891, 1.9899344031261632},
                    {0.4571632360630785, -1.2681450142516688, 1.9742665033639666},
                    {0.42414893152806327, -1.279179509919555, 1.9338461642773732}}});
  settings.weight_decay = 0.1;
  check_published({settings,
                   {{0.48943440393141086, -1.238684403595891, 1.9879344031261632},
                    {0.4547583609606312, -1.2619210621569297, 1.9643540266790374},
                    {0.3820189492653681, -1.1580624751598103, 1.7476212592941294}}});
}

// Numbers that are exact in bfloat16's place.
at::Tensor eighths(int64_t t, int64_t rows, int64_t columns) {
  at::Tensor matrix = at::zeros({rows, columns});
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      matrix[i][j] = static_cast<double>((7 * i + 3 * j + 5 * t + i * j) % 11 - 5) / 8;
  return matrix;
}

at::Tensor quarters(int64_t rows, int64_t columns) {
  at::Tensor matrix = at::zeros({rows, columns});
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) matrix[i][j] = static_cast<double>((i * 3 + j * 5) % 7 - 3) / 4;
  return matrix;
}

OptimizerSettings muon_settings() {
  OptimizerSettings settings;
  settings.name = "muon";
  settings.momentum = 0.95;
  settings.nesterov = true;
  settings.weight_decay = 0.1;
  return settings;
}

TEST_CASE("muon makes the matrices of PyTorch's Muon, wide and tall, with the rate that fits AdamW's") {
  const auto rule = make_update_rule(muon_settings());
  std::vector<at::Tensor> weights = {quarters(3, 5), quarters(4, 2)};
  for (int64_t t = 1; t <= 3; ++t) {
    weights = rule->step(weights, {eighths(t, 3, 5), eighths(t, 4, 2)}, 0.05);
    if (t == 2) continue;
    // torch.optim.Muon of PyTorch 2.11, adjust_lr_fn="match_rms_adamw".
    const std::vector<double> wide =
        t == 1 ? std::vector<double>{-0.7453,  0.486844,  0.016858, -0.487455, 0.74173,
                                     0.012316, -0.498013, 0.734808, 0.260454,  -0.252702,
                                     0.737908, 0.257354,  -0.25469, -0.732362, 0.49381}
               : std::vector<double>{-0.762781, 0.470985, 0.008458,  -0.482431, 0.753621,
                                     0.02592,   -0.51035, 0.716122,  0.263276,  -0.235672,
                                     0.73873,   0.271333, -0.236469, -0.703998, 0.505589};
    const std::vector<double> tall = t == 1 ? std::vector<double>{-0.746904, 0.488711, 0.012578, -0.496665,
                                                                  0.7375,    0.256836, -0.24667, -0.760703}
                                            : std::vector<double>{-0.75865, 0.48457,  0.031536,  -0.510816,
                                                                  0.730078, 0.263757, -0.253147, -0.77138};
    // Products in bfloat16 have the processor's bits: the step is 0.02 times a number of eight.
    CHECK(at::allclose(weights[0].flatten(), at::tensor(wide).to(at::kFloat), 0, 1e-3));
    CHECK(at::allclose(weights[1].flatten(), at::tensor(tall).to(at::kFloat), 0, 1e-3));
  }
}

TEST_CASE("muon steps as adamw what is no matrix, and what a group says is none") {
  OptimizerSettings settings = muon_settings();
  settings.parameter_groups = {{"embedding|head", 0.5, {}, false}};
  const std::vector<std::string> names = {"embedding.weight", "layer.weight", "layer.bias"};
  const auto tensors = [](uint64_t seed) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    return std::vector<at::Tensor>{at::randn({9, 4}, generator, at::TensorOptions()),
                                   at::randn({4, 4}, generator, at::TensorOptions()),
                                   at::randn({4}, generator, at::TensorOptions())};
  };
  const auto rule = make_update_rule(settings, names);
  OptimizerSettings adamw = settings;
  adamw.name = "adamw";
  const auto other = make_update_rule(adamw, names);
  std::vector<at::Tensor> weights = tensors(1), expected = tensors(1);
  for (uint64_t step = 0; step < 3; ++step) {
    weights = rule->step(weights, tensors(10 + step), 0.01);
    expected = other->step(expected, tensors(10 + step), 0.01);
  }
  CHECK(weights[0].equal(expected[0]));
  CHECK_FALSE(at::allclose(weights[1], expected[1]));
  CHECK(weights[2].equal(expected[2]));
  // A matrix has a momentum and no second moments.
  const UpdateState state = rule->state();
  for (size_t slot = 0; slot < 2; ++slot) {
    for (size_t i = 0; i < 3; ++i) {
      const auto shape = weights[i].sizes().vec();
      CHECK(state.slots[slot].second[i].sizes().vec() == slot_shape(settings, slot, names[i], shape));
    }
  }
  CHECK(state.slots[1].second[1].numel() == 0);
  CHECK(state.slots[1].second[0].numel() == 36);
}

TEST_CASE("muon: a gradient that is not finite is found in a matrix too") {
  const auto rule = make_update_rule(muon_settings());
  std::vector<at::Tensor> gradients = {eighths(1, 3, 5), at::ones({3})};
  gradients[0][1][2] = std::numeric_limits<double>::infinity();
  rule->step({quarters(3, 5), at::ones({3})}, gradients, 0.05);
  CHECK(rule->not_finite() == std::optional<size_t>(0));
}

OptimizerSettings adafactor_settings(double weight_decay) {
  OptimizerSettings settings;
  settings.name = "adafactor";
  settings.weight_decay = weight_decay;
  return settings;
}

// Weights after three updates: what is factored, large and small gradients, a vector, and a stack of matrices
// whose weights are small.
std::vector<at::Tensor> stepped_by_adafactor(double rate, double weight_decay, at::ScalarType dtype,
                                             UpdateState& state) {
  const auto rule = make_update_rule(adafactor_settings(weight_decay));
  std::vector<at::Tensor> weights = {quarters(3, 5), quarters(4, 2), quarters(1, 4)[0],
                                     quarters(2, 12).reshape({2, 2, 2, 3}).to(dtype) * 1e-4};
  for (at::Tensor& weight : weights) weight = weight.to(dtype).contiguous();
  for (int64_t t = 1; t <= 3; ++t) {
    std::vector<at::Tensor> gradients = {eighths(t, 3, 5) * t, eighths(t, 4, 2).to(dtype) * 1e-3,
                                         eighths(t, 1, 4)[0] * (t * t),
                                         eighths(t, 2, 12).reshape({2, 2, 2, 3})};
    for (at::Tensor& gradient : gradients) gradient = gradient.to(dtype);
    weights = rule->step(weights, gradients, rate);
  }
  state = rule->state();
  return weights;
}

// Figures of torch.optim.Adafactor of PyTorch 2.11, float64.
TEST_CASE("adafactor makes PyTorch's weights and moments") {
  const std::vector<std::vector<double>> slow = {
      {-0.765577694, 0.461478631, -0.0113393739, -0.482503355, 0.738713286, 0.0698595017, -0.520331684,
       0.705537412, 0.278811066, -0.243819972, 0.717500335, 0.302462874, -0.231266291, -0.677163565,
       0.495029318},
      {-0.766313418, 0.461863233, 0.075861346, -0.523188262, 0.717179936, 0.288643942, -0.25215418,
       -0.797844915},
      {-0.753853505, 0.468726503, -0.00571984013, -0.466737754},
      {-0.000131966691, -1.38802306e-06, -1.74127892e-05, 3.84005849e-05,  0.000122863327,  -3.69269743e-05,
       7.68667575e-05,  -8.73675051e-05, 9.57415917e-06,  -8.48285005e-05, 4.11058106e-05,  2.34262072e-05,
       0.000107805621,  -9.82299331e-05, 1.64345278e-05,  8.41910995e-05,  -2.77626473e-05, -0.000171429678,
       0.000110568835,  6.73227054e-06,  -6.02492223e-05, 7.30911082e-05,  -2.71790403e-05, 6.8837417e-05}};
  // The rate is above 1 / sqrt(t) from the second update on.
  const std::vector<std::vector<double>> fast = {
      {-1.13177791, -0.0596928173, -0.0043154992, -0.300343695, 0.642743749, 1.10967629, -0.896378158,
       0.185589923, 0.79521901, -0.317521838, 0.346664168, 1.15629977, -0.0891844027, 0.239901007,
       0.429233249},
      {-1.24691205, -0.0713886573, 1.413415, -1.05594037, 0.344323818, 1.05018311, -0.346478107, -1.85193119},
      {-0.908438284, -0.000112324125, 0.00492577045, 0.0301023858},
      {-0.000944376639, -0.000813549265, 0.000121099976,  0.00136180446,  0.000671907641,  -0.000927092119,
       0.00142993493,   -0.000260184359, -0.000778809161, -0.0012595129,  0.00129311479,   -0.000688553417,
       0.00156877831,   -0.000791057913, -0.000797470066, 0.000881034004, -0.000338012849, -0.00151066645,
       0.00101032296,   1.77875403e-06,  0.000161728154,  9.53946297e-05, -0.000850722946, 0.00131429753}};
  // Of rows, then of columns; of the stack matrix by matrix.
  const std::vector<std::vector<double>> moments = {
      {0.77128149, 0.875976065, 0.798456254, 0.861239278, 0.697974708, 0.879534824, 1.10877939, 0.528661486},
      {1.22932697e-07, 1.83679554e-07, 1.3399388e-07, 1.60045714e-07, 1.47337154e-07, 1.52988768e-07},
      {2.62463231, 2.89284505, 13.2357959, 5.50111328},
      {0.168432424, 0.13262392,  0.129430405, 0.121633141, 0.200520971, 0.149830442, 0.167923641,
       0.217981884, 0.136804529, 0.12184471,  0.169656366, 0.167057278, 0.194740717, 0.136381736,
       0.173948014, 0.162206524, 0.150555758, 0.117492467, 0.107096116, 0.244554841}};
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kDouble);
  // Of the largest number. Small weights and gradients had been rounded to float32 there.
  const double tolerance = dtype == at::kDouble ? 3e-7 : 2e-6;
  UpdateState state;
  const auto check = [&](const at::Tensor& found, const std::vector<double>& expected) {
    const at::Tensor figures = at::tensor(expected, at::kDouble);
    const at::Tensor off = (found.detach().flatten().to(at::kDouble) - figures).abs() / figures.abs().max();
    CAPTURE(off.max().item<double>());
    CHECK(off.max().item<double>() < tolerance);
  };
  const auto slowly = stepped_by_adafactor(0.05, 0.1, dtype, state);
  for (size_t i = 0; i < 4; ++i) {
    CAPTURE(i);
    check(slowly[i], slow[i]);
    check(state.slots.at(0).second[i], moments[i]);
    CHECK(state.slots[0].second[i].sizes().vec() ==
          slot_shape(adafactor_settings(0), 0, "", slowly[i].sizes().vec()));
  }
  const auto quickly = stepped_by_adafactor(0.9, 0, dtype, state);
  for (size_t i = 0; i < 4; ++i) check(quickly[i], fast[i]);
}

// Its float32: the first gradients are so small that the means of their squares are below eps.
TEST_CASE(
    "adafactor: matrices of one row or one column keep half of PyTorch's moments and make its weights") {
  const std::vector<std::vector<double>> expected = {
      {-0.75684309, 0.464538395, -0.00735505763, -0.460816562, 0.739777327, 0.207135797},
      {-0.764330864, 0.0524865836, 0.717817545, -0.233431205, 0.485555321},
      {-0.762688339, 0.469787806, 0.0519989096, -0.51641959, 0.716056585, 0.28366366}};
  const auto rule = make_update_rule(adafactor_settings(0.1));
  std::vector<at::Tensor> weights = {quarters(1, 6), quarters(5, 1), quarters(3, 2).reshape({3, 2, 1, 1})};
  for (int64_t t = 1; t <= 3; ++t) {
    weights = rule->step(
        weights,
        {eighths(t, 1, 6) * 1e-4 * t, eighths(t, 5, 1), eighths(t, 3, 2).reshape({3, 2, 1, 1}) * 1e-3}, 0.05);
  }
  for (size_t i = 0; i < 3; ++i) {
    CHECK(at::allclose(weights[i].detach().flatten().to(at::kDouble), at::tensor(expected[i], at::kDouble),
                       2e-6, 1e-9));
    CHECK(rule->state().slots[0].second[i].sizes() == weights[i].sizes());
  }
}

TEST_CASE(
    "adafactor: the same bits with any number of threads, in place too, and what is not finite is found") {
  const int64_t columns = GENERATE(1, 3, 70'001);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(3);
  const std::vector<int64_t> shape = {210'000 / columns, columns};
  const at::Tensor weight = at::randn(shape, generator, at::TensorOptions());
  const at::Tensor gradient = at::randn(shape, generator, at::TensorOptions());
  const auto stepped = [&](int threads, bool in_place) {
    at::set_num_threads(threads);
    const auto rule = make_update_rule(adafactor_settings(0.1));
    std::vector<at::Tensor> weights = {weight.clone()};
    for (int step = 0; step < 2; ++step)
      weights = rule->step(weights, {gradient}, 0.1, in_place ? weights : std::vector<at::Tensor>());
    at::set_num_threads(1);
    return weights[0].detach();
  };
  const at::Tensor once = stepped(1, false);
  CHECK(stepped(4, false).equal(once));
  CHECK(stepped(3, true).equal(once));
  const auto rule = make_update_rule(adafactor_settings(0));
  at::Tensor broken = gradient.clone();
  broken[1][0] = std::nan("");
  rule->step({weight}, {broken}, 0.1);
  CHECK(rule->not_finite() == std::optional<size_t>(0));
}

namespace {

std::vector<at::Tensor> random_tensors(uint64_t seed, at::ScalarType dtype) {
  std::vector<at::Tensor> tensors = random_tensors(seed);
  for (at::Tensor& tensor : tensors) tensor = tensor.to(dtype);
  return tensors;
}

}  // namespace

TEST_CASE("corrections of delays: error-feedback and dc over any rule, from updates of fresh gradients on") {
  OptimizerSettings settings;
  settings.name = GENERATE("sgd", "adam", "adamw", "nadam", "lion", "muon", "adafactor");
  settings.momentum = settings.name == "sgd" ? GENERATE(0.0, 0.9) : settings.name == "muon" ? 0.95 : 0;
  settings.weight_decay = 0.01;
  const bool in_place = GENERATE(false, true);
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kDouble);
  const auto plain = make_update_rule(settings);
  settings.delay_correction = GENERATE("error-feedback", "dc");
  CAPTURE(settings.name, settings.momentum, settings.delay_correction, in_place);
  const bool feeds_back = settings.delay_correction == "error-feedback";
  const auto rule = make_update_rule(settings);
  std::vector<at::Tensor> weights = random_tensors(1, dtype);
  std::vector<at::Tensor> before(3);
  const int64_t delays[] = {0, 1, 1, 0, 1};  // the pipeline drains before the fourth
  for (uint64_t step = 0; step < 5; ++step) {
    const int64_t delay = delays[step];
    std::vector<at::Tensor> old;
    for (const at::Tensor& weight : weights) old.push_back(weight.detach().clone());
    std::vector<at::Tensor> gradients = random_tensors(10 + step, dtype);
    if (delay == 1 && !feeds_back) {
      for (size_t i = 0; i < 3; ++i)
        gradients[i] = before[i] * gradients[i] * gradients[i] * 0.04 + gradients[i];
    }
    std::vector<at::Tensor> expected = plain->step(old, gradients, 0.1);
    for (size_t i = 0; i < 3; ++i) {
      const at::Tensor change = expected[i].detach() - old[i];
      if (delay == 1 && feeds_back) expected[i] = expected[i].detach() + (change - before[i]);
      before[i] = change;
    }
    weights = rule->step(weights, random_tensors(10 + step, dtype), 0.1,
                         in_place ? weights : std::vector<at::Tensor>(), {}, delay);
    for (size_t i = 0; i < 3; ++i) {
      CHECK(weights[i].equal(expected[i]));
      CHECK(rule->state().slots.back().second[i].equal(before[i]));
    }
  }
  CHECK(rule->state().slots.back().first == (feeds_back ? "previous_update" : "last_change"));
}

TEST_CASE("corrections of delays: large versions are written round the cache with the same bits") {
  OptimizerSettings settings;
  settings.momentum = 0.9;
  settings.delay_correction = GENERATE("error-feedback", "dc");
  auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  const at::Tensor weight = at::randn({(int64_t{17} << 18) + 5}, generator, at::TensorOptions());
  const at::Tensor gradient = at::randn(weight.sizes(), generator, at::TensorOptions());
  const auto streamed = make_update_rule(settings), ordinary = make_update_rule(settings);
  at::Tensor fresh = weight.clone(), same = weight.clone();
  for (int64_t delay : {0, 1, 1}) {
    fresh = streamed->step({fresh}, {gradient}, 0.1, {}, {}, delay)[0];
    ordinary->step({same}, {gradient}, 0.1, {same}, {}, delay);
    CHECK(fresh.equal(same));
  }
}

TEST_CASE("a rule goes on from another one's state, also with weights of stages that made more updates") {
  OptimizerSettings settings;
  settings.name = GENERATE("sgd", "adam", "adamw", "nadam", "lion", "muon", "adafactor");
  settings.momentum = settings.name == "sgd" ? GENERATE(0.0, 0.9) : settings.name == "muon" ? 0.95 : 0;
  settings.weight_decay = 0.01;
  settings.delay_correction = GENERATE("none", "error-feedback");
  // Two stages: the first has made `behind` updates fewer than the second. Then one stage holds both.
  const uint64_t behind = GENERATE(0, 1, 3);
  const auto first = make_update_rule(settings);
  const auto second = make_update_rule(settings);
  std::vector<at::Tensor> weights[2] = {random_tensors(1), random_tensors(2)};
  for (uint64_t step = 0; step < 3; ++step) {
    if (step >= behind) weights[0] = first->step(weights[0], random_tensors(10 + step), 0.1);
    weights[1] = second->step(weights[1], random_tensors(20 + step), 0.1);
  }
  const auto joined = make_update_rule(settings);
  UpdateState state;
  state.updates.assign(3, static_cast<int64_t>(3 - behind));
  state.updates.insert(state.updates.end(), 3, 3);
  const UpdateState states[2] = {first->state(), second->state()};
  CHECK(states[1].updates == std::vector<int64_t>(3, 3));
  REQUIRE(states[1].slots.size() == slot_names(settings).size());
  for (size_t slot = 0; slot < states[1].slots.size(); ++slot) {
    CHECK(states[1].slots[slot].first == slot_names(settings)[slot]);
    std::vector<at::Tensor> tensors;
    for (size_t i = 0; i < 3; ++i) {
      const auto shape = slot_shape(settings, slot, "", weights[0][i].sizes().vec());
      tensors.push_back(states[0].slots.empty() ? at::zeros(shape) : states[0].slots[slot].second[i].clone());
    }
    for (const at::Tensor& tensor : states[1].slots[slot].second) tensors.push_back(tensor.clone());
    state.slots.emplace_back(slot_names(settings)[slot], std::move(tensors));
  }
  joined->restore(std::move(state));
  std::vector<at::Tensor> both = weights[0];
  both.insert(both.end(), weights[1].begin(), weights[1].end());
  for (uint64_t step = 3; step < 6; ++step) {
    weights[0] = first->step(weights[0], random_tensors(10 + step), 0.1);
    weights[1] = second->step(weights[1], random_tensors(20 + step), 0.1);
    auto gradients = random_tensors(10 + step);
    for (const at::Tensor& gradient : random_tensors(20 + step)) gradients.push_back(gradient);
    both = joined->step(both, std::move(gradients), 0.1);
    for (size_t i = 0; i < 6; ++i) CHECK(both[i].equal(weights[i / 3][i % 3]));
  }
}

TEST_CASE("parameter groups: every weight is stepped as by a rule of its own") {
  OptimizerSettings settings;
  settings.name = GENERATE("sgd", "adam", "adamw", "nadam", "lion", "muon", "adafactor");
  settings.momentum = settings.name == "sgd" ? GENERATE(0.0, 0.9) : settings.name == "muon" ? 0.95 : 0;
  settings.nesterov = settings.momentum > 0 && GENERATE(false, true);
  settings.weight_decay = GENERATE(0.0, 0.05);
  settings.no_decay = "bias";
  settings.parameter_groups = {{"^b", 0.25, {}}, {"weight", 3, 0.125}};
  const std::vector<std::string> names = {"a.weight", "b.bias", "b.scale"};
  const std::vector<double> scales = {3, 0.25, 0.25};
  const std::vector<double> decays = {0.125, 0, settings.weight_decay};
  const auto together = make_update_rule(settings, names);
  std::vector<std::unique_ptr<UpdateRule>> alone;
  for (const double decay : decays) {
    OptimizerSettings own = settings;
    own.no_decay.clear();
    own.parameter_groups.clear();
    own.weight_decay = decay;
    alone.push_back(make_update_rule(own));
  }
  std::vector<at::Tensor> weights = random_tensors(1);
  std::vector<at::Tensor> expected = random_tensors(1);
  for (uint64_t step = 0; step < 4; ++step) {
    weights = together->step(weights, random_tensors(10 + step), 0.1);
    for (size_t i = 0; i < 3; ++i) {
      expected[i] = alone[i]->step({expected[i]}, {random_tensors(10 + step)[i]}, 0.1 * scales[i])[0];
      CHECK(weights[i].equal(expected[i]));
    }
  }
}

TEST_CASE(
    "predict: where the slots say that weights go, by rate and updates, before the first step nowhere") {
  OptimizerSettings settings;
  settings.name = GENERATE("sgd", "adam", "adamw");
  settings.momentum = settings.name == "sgd" ? 0.9 : 0;
  settings.weight_decay = 0.05;
  settings.parameter_groups = {{"bias", 3, {}}};
  const std::vector<double> scales = {1, 3, 1};
  const auto rule = make_update_rule(settings, {"weight", "bias", "other"});
  const auto predicted = [&](const std::vector<at::Tensor>& weights, int64_t updates) {
    std::vector<at::Tensor> into;
    for (const at::Tensor& weight : weights) into.push_back(at::empty_like(weight.detach()));
    rule->predict(weights, 0.1, updates, into);
    return into;
  };
  std::vector<at::Tensor> weights = random_tensors(1);
  for (size_t i = 0; i < 3; ++i) CHECK(predicted(weights, 4)[i].equal(weights[i]));
  for (uint64_t step = 1; step <= 3; ++step) {
    weights = rule->step(weights, random_tensors(10 + step), 0.1);
    const UpdateState state = rule->state();
    for (const int64_t updates : {1, 4}) {
      const auto into = predicted(weights, updates);
      for (size_t i = 0; i < 3; ++i) {
        const at::Tensor first = state.slots[0].second[i], w = weights[i].detach();
        const double way = 0.1 * scales[i] * static_cast<double>(updates);
        if (settings.name == "sgd") {
          CHECK(into[i].equal(w - first * way));
          continue;
        }
        const auto t = static_cast<double>(step);
        const at::Tensor divisor =
            state.slots[1].second[i].sqrt() / std::sqrt(1 - std::pow(settings.beta2, t)) + settings.epsilon;
        CHECK(into[i].equal(w - first / divisor * (way / (1 - std::pow(settings.beta1, t)))));
      }
    }
  }
}

TEST_CASE("an unknown rule is an error with the nearest") {
  OptimizerSettings settings;
  settings.name = "adamm";
  CHECK_THROWS_WITH(make_update_rule(settings), Catch::Contains("adam"));
}
