// Whose fault a number that is not finite is: data sets with known damage, read again.
#include "runtime/train/data_fault.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <limits>
#include <map>
#include <random>

#include "models/run/scalar_types.h"
#include "models/zoo/builder.h"
#include "tests/support/error_of.h"

namespace pipewright::testing {
namespace {

// A data set in memory, a tensor a field.
class DamagedSet : public Dataset {
 public:
  void add(const std::string& name, const at::Tensor& rows) {
    fields_.push_back({name, {dtype_name_of(rows.scalar_type()), rows.sizes().slice(1).vec()}});
    rows_.push_back(rows.contiguous());
  }
  at::Tensor& rows(size_t field) { return rows_[field]; }
  int64_t size() const override { return rows_[0].size(0); }
  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t classes() const override { return 10; }
  void read(int64_t index, size_t field, SampleKey, void* into) const override {
    if (index == unreadable) throw RunError("sample " + std::to_string(index) + " cannot be read");
    const at::Tensor row = rows_[field][index];
    std::memcpy(into, row.const_data_ptr(), row.nbytes());
  }

  int64_t unreadable = -1;

 private:
  std::vector<DataField> fields_;
  std::vector<at::Tensor> rows_;
};

NotFiniteError not_finite(int64_t first, int64_t last) {
  return {"the loss of minibatch " + std::to_string(last) + " is nan", "Lower the learning rate.", first,
          last};
}

constexpr int64_t kSamplesOfSet = 24, kBatchOfSet = 4;

// Minibatches of an order of samples, drawn once.
std::function<LoadRequest(int64_t)> requests_of(std::vector<int64_t> order) {
  return [order = std::move(order)](int64_t k) {
    LoadRequest request;
    for (int64_t i = 0; i < kBatchOfSet; ++i)
      request.indices.push_back(order[static_cast<size_t>((k * kBatchOfSet + i) % kSamplesOfSet)]);
    return request;
  };
}

// Scores classes by a cross entropy with this reduction.
Graph classifier(int64_t reduction, int64_t ignored = -100) {
  ModelBuilder model("classifier", kBatchOfSet);
  const std::string x = model.input("images", "float32", {6});
  const std::string labels = model.input("labels", "int64", {});
  const auto layer = model.layer("head");
  const std::string scores = model.linear(x, {.features = 10});
  const std::string loss = model.call_one("cross_entropy_loss", "",
                                          {{"self", named(scores)},
                                           {"target", named(labels)},
                                           {"reduction", reduction},
                                           {"ignore_index", ignored}},
                                          {});
  return model.finish(loss, scores).graph;
}

}  // namespace

TEST_CASE("data fault: the first number that is not finite is named, with its field, sample and place") {
  std::mt19937_64 random(11);
  const auto pick = [&](int64_t count) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(count));
  };
  const std::vector<double> broken = {std::numeric_limits<double>::quiet_NaN(),
                                      std::numeric_limits<double>::infinity(),
                                      -std::numeric_limits<double>::infinity()};
  const std::vector<std::string> words = {"nan", "inf", "-inf"};
  int64_t found = 0, sound = 0;
  for (int round = 0; round < 400; ++round) {
    CAPTURE(round);
    DamagedSet data;
    Graph graph;
    const auto fields = 1 + pick(3);
    for (int64_t f = 0; f < fields; ++f) {
      std::vector<int64_t> shape = {kSamplesOfSet};
      for (int64_t d = pick(3); d > 0; --d) shape.push_back(1 + pick(3));
      const auto type = std::vector<at::ScalarType>{at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,
                                                    at::kLong}[static_cast<size_t>(pick(5))];
      const std::string name = "field" + std::to_string(f);
      data.add(name, at::randint(-5, 5, shape, at::TensorOptions(type)));
      if (pick(4) > 0) graph.inputs.push_back(name);
    }
    std::shuffle(graph.inputs.begin(), graph.inputs.end(), random);  // the data set's order counts
    std::map<std::pair<size_t, int64_t>, std::string> damage;        // by field and sample
    for (int64_t n = pick(6); n > 0; --n) {
      const auto f = static_cast<size_t>(pick(fields));
      const int64_t sample = pick(kSamplesOfSet);
      at::Tensor row = data.rows(f)[sample].view(-1);
      if (!row.is_floating_point() || damage.count({f, sample})) continue;
      const auto what = static_cast<size_t>(pick(3));
      row[pick(row.size(0))].fill_(broken[what]);
      damage[{f, sample}] = words[what];
    }
    std::vector<int64_t> order(kSamplesOfSet);
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
    std::shuffle(order.begin(), order.end(), random);
    const auto request = requests_of(order);
    const int64_t first = pick(10), last = first + pick(4);

    std::string expected;
    for (int64_t k = first; k <= last && expected.empty(); ++k) {
      for (size_t f = 0; f < data.fields().size() && expected.empty(); ++f) {
        const std::string& name = data.fields()[f].name;
        if (std::find(graph.inputs.begin(), graph.inputs.end(), name) == graph.inputs.end()) continue;
        const auto samples = request(k).indices;
        for (size_t i = 0; i < samples.size() && expected.empty(); ++i) {
          if (!damage.count({f, samples[i]})) continue;
          expected = "field '" + name + "' of sample " + std::to_string(samples[i]) +
                     " of the data, number " + std::to_string(i) + " of minibatch " + std::to_string(k) +
                     ", holds " + damage[{f, samples[i]}];
        }
      }
    }
    CHECK(data_fault(not_finite(first, last), graph, data, request) == expected);
    ++(expected.empty() ? sound : found);
  }
  CHECK(found > 50);
  CHECK(sound > 50);
}

TEST_CASE("data fault: a minibatch whose labels ask nothing has no mean loss, and a sum of none is 0") {
  constexpr int64_t kMeanLoss = 1, kSumLoss = 2;
  std::mt19937_64 random(12);
  std::vector<int64_t> order(kSamplesOfSet);
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  for (int round = 0; round < 100; ++round) {
    CAPTURE(round);
    const int64_t ignored = round % 2 == 0 ? -100 : 3;
    DamagedSet data;
    data.add("images", at::randn({kSamplesOfSet, 6}, at::TensorOptions()));
    data.add("labels", at::randint(10, {kSamplesOfSet}, at::TensorOptions(at::kLong)));
    data.rows(1).masked_fill_(at::rand({kSamplesOfSet}, at::TensorOptions()).lt(0.6), ignored);
    std::shuffle(order.begin(), order.end(), random);
    const auto request = requests_of(order);
    std::string expected;
    for (int64_t k = 0; k < 6 && expected.empty(); ++k) {
      const auto samples = request(k).indices;
      const bool asks_nothing = std::all_of(samples.begin(), samples.end(), [&](int64_t sample) {
        return data.rows(1)[sample].item<int64_t>() == ignored;
      });
      if (asks_nothing) {
        expected = "all labels of minibatch " + std::to_string(k) + " are " + std::to_string(ignored) +
                   ", which ask nothing: its loss is the mean of none";
      }
    }
    CHECK(data_fault(not_finite(0, 5), classifier(kMeanLoss, ignored), data, request) == expected);
    CHECK(data_fault(not_finite(0, 5), classifier(kSumLoss, ignored), data, request) == "");
  }
}

TEST_CASE("data fault: what cannot be read again is not blamed") {
  DamagedSet data;
  data.add("images", at::zeros({kSamplesOfSet, 6}, at::TensorOptions()));
  data.rows(0)[9].fill_(std::numeric_limits<double>::infinity());
  Graph graph;
  graph.inputs = {"images"};
  std::vector<int64_t> order;
  for (int64_t i = 0; i < kSamplesOfSet; ++i) order.push_back(i);
  const auto request = requests_of(order);
  CHECK(data_fault(not_finite(0, 5), graph, data, request) != "");
  data.unreadable = 3;  // before the one that is broken
  CHECK(data_fault(not_finite(0, 5), graph, data, request) == "");
  CHECK(data_fault(not_finite(1, 5), graph, data, request) != "");
}

TEST_CASE("data fault: it stands behind the error, which keeps its minibatches and gets another remedy") {
  const NotFiniteError error = not_finite(3, 7);
  const auto thrown = [&](const std::string& fault) {
    try {
      throw_with_cause(error, fault);
    } catch (const NotFiniteError& caught) {
      return caught;
    }
  };
  const NotFiniteError as_it_was = thrown("");
  CHECK(std::string(as_it_was.what()) == error.what());
  CHECK(as_it_was.remedy() == error.remedy());
  const NotFiniteError with_cause = thrown("field 'images' holds nan");
  CHECK(std::string(with_cause.what()) == std::string(error.what()) + ": field 'images' holds nan");
  CHECK_THAT(with_cause.remedy(), Catch::Contains("not the learning rate"));
  for (const NotFiniteError& each : {as_it_was, with_cause}) {
    CHECK(each.first_minibatch() == 3);
    CHECK(each.last_minibatch() == 7);
    CHECK(each.code() == error.code());
  }
}

}  // namespace pipewright::testing
