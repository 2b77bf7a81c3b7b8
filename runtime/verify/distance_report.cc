#include "runtime/verify/distance_report.h"

#include <cmath>
#include <cstdio>

#include "graph/text_table.h"

namespace pipewright {
namespace {

constexpr const char* kAllowedWords = " and ten times what rounding does, up to ";

std::string left_out_words(const UpToRounding& compared) {
  const size_t left = compared.found.parameters.size() - compared.compared();
  return left == 0
             ? ""
             : "; " + std::to_string(left) + " parameters are left out, which rounding alone takes too far";
}

std::string nothing_words(const UpToRounding& compared) {
  return "says nothing: rounding alone takes the model " + distance_text(compared.rounding.model) +
         " of its way; take fewer --minibatches or a smaller --learning-rate";
}

std::string loss_apart_words(const LossesUpToRounding::Loss& loss) {
  return "the loss of minibatch " + std::to_string(loss.minibatch) + " is " + number_text(loss.got) +
         " here and " + number_text(loss.expected) + " there, " + distance_text(loss.difference) +
         " apart, more than " + distance_text(loss.allowed);
}

}  // namespace

std::string number_text(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

std::string distance_text(double value) {
  char text[40];
  std::snprintf(text, sizeof text, value == 0 ? "0" : "%.1e", value);
  return text;
}

std::string distance_words(const UpToRounding& compared, size_t i, const std::string& other) {
  const auto& parameter = compared.found.parameters[i];
  return std::string(parameter.place.buffer ? "buffer " : "parameter ") + in_quotes(parameter.place.name) +
         " of stage " + std::to_string(parameter.place.stage) + " lies " +
         distance_text(parameter.difference) + " of its way from " + other + ", more than " +
         distance_text(compared.allowed(i).value());
}

std::string distance_table(const UpToRounding& compared, const std::string& from, int64_t width,
                           bool with_losses) {
  using Side = TableColumn::Side;
  TextTable table(
      {{"stage"}, {"parameter", Side::kLeft, 0, 16}, {"elements", Side::kRight, 1}, {from}, {"rounding"}});
  const RelativeComparison& found = compared.found;
  const RelativeComparison& rounding = compared.rounding;
  for (size_t i = 0; i < found.parameters.size(); ++i) {
    const auto& parameter = found.parameters[i];
    table.add({std::to_string(parameter.place.stage), parameter.place.name,
               std::to_string(parameter.elements), distance_text(parameter.difference),
               distance_text(rounding.parameters[i].difference)});
  }
  table.add({"", "the model", "", distance_text(found.model), distance_text(rounding.model)});
  if (with_losses) table.add({"", "losses", "", distance_text(found.loss), distance_text(rounding.loss)});
  return table.text(width);
}

std::string verdict_text(const UpToRounding& compared) {
  if (compared.equal) return "equal bit for bit";
  if (compared.compared() == 0) return nothing_words(compared);
  const auto* largest = compared.found.largest();
  return (compared.holds() ? "equal up to the order of sums: at most " : "DIFFERENT: up to ") +
         distance_text(largest->difference) + " (" + largest->place.name + "), allowed are " +
         distance_text(compared.tolerance) + kAllowedWords + distance_text(kMostAllowed) +
         left_out_words(compared);
}

Json distance_json(const UpToRounding& compared) {
  Json json;
  json["equal"] = compared.equal;
  json["tolerance"] = compared.tolerance;
  json["model"] = finite_or_null(compared.found.model);
  json["losses"] = finite_or_null(compared.found.loss);
  json["parameters"] = Json::array();
  for (size_t i = 0; i < compared.found.parameters.size(); ++i) {
    const auto& parameter = compared.found.parameters[i];
    json["parameters"].push_back({{"name", parameter.place.name},
                                  {"stage", parameter.place.stage},
                                  {"elements", parameter.elements},
                                  {"difference", finite_or_null(parameter.difference)},
                                  {"rounding", finite_or_null(compared.rounding.parameters[i].difference)},
                                  {"allowed", finite_or_null(compared.allowed(i).value_or(std::nan("")))}});
  }
  return json;
}

std::string parting_words(const AgainstOther& against) {
  std::string words;
  if (against.losses.first) words = loss_apart_words(*against.losses.first);
  for (const AgainstOther::Weights& weights : against.weights) {
    const auto beyond = weights.tensors.beyond();
    if (beyond.empty()) continue;
    if (!words.empty()) words += "; ";
    words += "after " + std::to_string(weights.minibatches) + " minibatches " +
             distance_words(weights.tensors, beyond.front(), "the other's");
    if (beyond.size() > 1) words += " (" + std::to_string(beyond.size()) + " tensors lie too far off)";
    break;
  }
  return words;
}

std::string verdict_text(const AgainstOther& against) {
  if (!against.holds()) return "WRONG: " + parting_words(against);
  if (!against.says_something()) {
    return against.weights.empty() ? "equal where it begins; nothing else is compared"
                                   : nothing_words(against.weights.back().tensors);
  }
  std::string text = against.equal() ? "equal bit for bit" : "equal up to rounding";
  if (const int64_t count = against.losses.compared + against.losses.left_out; count > 0) {
    text += ": " + std::to_string(count) + " losses";
    if (!against.losses.equal) text += ", at most " + distance_text(against.losses.largest) + " apart";
    if (!against.equal() && against.losses.left_out > 0)
      text += " (" + std::to_string(against.losses.left_out) +
              " of them left out, which rounding alone takes too far)";
  }
  for (const AgainstOther::Weights& weights : against.weights) {
    text += "; after " + std::to_string(weights.minibatches) + " minibatches " +
            std::to_string(weights.tensors.found.parameters.size()) + " tensors";
    const auto* largest = weights.tensors.found.largest();
    if (!weights.tensors.equal && largest)
      text += ", at most " + distance_text(largest->difference) + " (" + largest->place.name + ")";
    text += left_out_words(weights.tensors);
  }
  return text;
}

Json against_json(const AgainstOther& against) {
  Json json;
  json["from"] = against.from;
  json["verdict"] = !against.holds()            ? "wrong"
                    : !against.says_something() ? "says_nothing"
                    : against.equal()           ? "equal"
                                                : "equal_up_to_rounding";
  json["losses"] = {{"compared", against.losses.compared},
                    {"left_out", against.losses.left_out},
                    {"equal", against.losses.equal},
                    {"largest", finite_or_null(against.losses.largest)},
                    {"first", nullptr}};
  if (const auto& first = against.losses.first) {
    json["losses"]["first"] = {{"minibatch", first->minibatch},
                               {"value", finite_or_null(first->got)},
                               {"expected", finite_or_null(first->expected)},
                               {"allowed", finite_or_null(first->allowed)}};
  }
  json["weights"] = Json::array();
  for (const AgainstOther::Weights& weights : against.weights) {
    Json one = {{"file", weights.file}, {"minibatches", weights.minibatches}, {"beyond", Json::array()}};
    for (const size_t i : weights.tensors.beyond())
      one["beyond"].push_back(weights.tensors.found.parameters[i].place.name);
    one.update(distance_json(weights.tensors));
    json["weights"].push_back(std::move(one));
  }
  return json;
}

}  // namespace pipewright
