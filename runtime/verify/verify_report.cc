#include "runtime/verify/verify_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>
#include <vector>

#include "graph/error.h"
#include "graph/text_table.h"

namespace pipewright {
namespace {

std::string text_of(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

std::string small_text(double value) {
  char text[40];
  std::snprintf(text, sizeof text, value == 0 ? "0" : "%.1e", value);
  return text;
}

std::string index_text(const std::vector<int64_t>& index) {
  std::string text;
  for (const int64_t i : index) text += (text.empty() ? "" : ", ") + std::to_string(i);
  return "[" + text + "]";
}

std::string loss_words(const ExactComparison::Loss& loss, int64_t first) {
  return "the first loss that differs is that of minibatch " +
         std::to_string(first + static_cast<int64_t>(loss.position)) + ": " + text_of(loss.got) +
         " instead of " + text_of(loss.expected);
}

std::string tensor_words(const ExactComparison::Element& element) {
  return in_quotes(element.place.name) + " of stage " + std::to_string(element.place.stage);
}

}  // namespace

void demand(const Verification& verification, const std::filesystem::path& run_folder) {
  if (verification.holds()) return;
  const ExactComparison& serial = verification.serial;
  const std::string kept = "What was compared is in " + run_folder.string() + ".";
  if (!serial.equal()) {
    std::string words = "verify: ";
    if (serial.first_element) {
      const auto& element = *serial.first_element;
      words += "parameter " + tensor_words(element) + " differs from the serial reference at " +
               index_text(element.index) + ": " + text_of(element.got) + " instead of " +
               text_of(element.expected);
      if (serial.different_tensors > 1)
        words += " (" + std::to_string(serial.different_tensors) + " tensors differ)";
    } else {
      words += "all weights are equal to the serial reference's";
    }
    words += serial.first_loss ? "; " + loss_words(*serial.first_loss, verification.minibatches.first)
                               : "; all losses are equal";
    throw NumericalError(
        words,
        "Of a finished run: was anything in its folder changed, or was it trained by another "
        "version or on another kind of CPU? " +
            kept);
  }
  const auto& parameters = verification.one_device->parameters;
  size_t worst = 0;
  const auto excess = [&](size_t p) {
    const auto allowed = verification.allowed(p);
    return allowed ? parameters[p].difference / *allowed : 0;
  };
  for (size_t p = 1; p < parameters.size(); ++p)
    if (excess(p) > excess(worst)) worst = p;
  throw NumericalError(
      "verify: parameter " + in_quotes(parameters[worst].place.name) + " of stage " +
          std::to_string(parameters[worst].place.stage) + " lies " +
          small_text(parameters[worst].difference) + " of its way from one device's, more than " +
          small_text(verification.allowed(worst).value()),
      "It equals the serial reference: the plan computes something else than one device. " + kept);
}

std::string verification_table(const Verification& verification, const Plan& plan, int64_t width) {
  std::ostringstream out;
  const Span& span = verification.minibatches;
  out << (verification.plans > 1 ? "the last of " + std::to_string(verification.plans) + " plans, " : "plan ")
      << plan.shape_text() << " " << plan.schedule << " " << plan.weights << " on " << verification.ranks
      << (verification.ranks == 1 ? " rank" : " ranks") << ", minibatches " << span.first << " to "
      << span.end() - 1 << ", " << verification.places.size() << " tensors\n\n";
  if (verification.one_device) {
    const RelativeComparison& one = *verification.one_device;
    using Side = TableColumn::Side;
    TextTable table({{"stage"},
                     {"parameter", Side::kLeft, 0, 16},
                     {"elements", Side::kRight, 1},
                     {"from one device"},
                     {"rounding"}});
    const RelativeComparison& rounding = verification.rounding;
    for (size_t i = 0; i < one.parameters.size(); ++i) {
      const auto& parameter = one.parameters[i];
      table.add({std::to_string(parameter.place.stage), parameter.place.name,
                 std::to_string(parameter.elements), small_text(parameter.difference),
                 small_text(rounding.parameters[i].difference)});
    }
    table.add({"", "the model", "", small_text(one.model), small_text(rounding.model)});
    table.add({"", "losses", "", small_text(one.loss), small_text(rounding.loss)});
    out << table.text(width);
    out << "\n";
  }
  const auto& serial = verification.serial;
  out << "serial reference   " << (serial.equal() ? "equal bit for bit: " : "DIFFERENT: ") << "losses "
      << (serial.first_loss ? "differ" : "equal") << ", "
      << verification.places.size() - static_cast<size_t>(serial.different_tensors) << " of "
      << verification.places.size() << " tensors equal\n";
  out << "one device         ";
  if (!verification.one_device) {
    out << "not compared: this plan's gradients are older, or its stages update at different times\n";
  } else if (verification.one_device_equal) {
    out << "equal bit for bit\n";
  } else if (verification.compared() == 0) {
    out << "says nothing: rounding alone takes the model " << small_text(verification.rounding.model)
        << " of its way; take fewer --minibatches or a smaller --learning-rate\n";
  } else {
    const auto* largest = verification.one_device->largest();
    out << (verification.holds() ? "equal up to the order of sums: at most " : "DIFFERENT: up to ")
        << small_text(largest->difference) << " (" << largest->place.name << "), allowed are "
        << small_text(verification.tolerance) << " and ten times what rounding does, up to "
        << small_text(kMostAllowed);
    if (const size_t left = verification.one_device->parameters.size() - verification.compared(); left > 0)
      out << "; " << left << " parameters are left out, which rounding alone takes too far";
    out << "\n";
  }
  return out.str();
}

Json verification_json(const Verification& verification) {
  const auto number = [](double value) { return finite_or_null(value); };
  const ExactComparison& serial = verification.serial;
  Json json;
  json["verdict"] = verification.holds() ? "equal" : "different";
  json["first_minibatch"] = verification.minibatches.first;
  json["minibatches"] = verification.minibatches.count;
  json["ranks"] = verification.ranks;
  json["tensors"] = verification.places.size();
  Json& exact = json["serial_reference"];
  exact["equal"] = serial.equal();
  exact["different_tensors"] = serial.different_tensors;
  exact["first_parameter"] = nullptr;
  if (serial.first_element) {
    exact["first_parameter"] = {{"name", serial.first_element->place.name},
                                {"stage", serial.first_element->place.stage},
                                {"index", serial.first_element->index},
                                {"value", number(serial.first_element->got)},
                                {"expected", number(serial.first_element->expected)}};
  }
  exact["first_loss"] = nullptr;
  if (serial.first_loss) {
    exact["first_loss"] = {
        {"minibatch", verification.minibatches.first + static_cast<int64_t>(serial.first_loss->position)},
        {"value", number(serial.first_loss->got)},
        {"expected", number(serial.first_loss->expected)}};
  }
  json["one_device"] = nullptr;
  if (!verification.one_device) return json;
  Json& one = json["one_device"];
  one["equal"] = verification.one_device_equal;
  one["tolerance"] = verification.tolerance;
  one["model"] = number(verification.one_device->model);
  one["losses"] = number(verification.one_device->loss);
  one["parameters"] = Json::array();
  for (size_t i = 0; i < verification.one_device->parameters.size(); ++i) {
    const auto& parameter = verification.one_device->parameters[i];
    one["parameters"].push_back({{"name", parameter.place.name},
                                 {"stage", parameter.place.stage},
                                 {"elements", parameter.elements},
                                 {"difference", number(parameter.difference)},
                                 {"rounding", number(verification.rounding.parameters[i].difference)},
                                 {"allowed", number(verification.allowed(i).value_or(std::nan("")))}});
  }
  return json;
}

}  // namespace pipewright
