#include "runtime/verify/verify_report.h"

#include <sstream>
#include <vector>

#include "graph/error.h"
#include "runtime/verify/distance_report.h"

namespace pipewright {
namespace {

std::string index_text(const std::vector<int64_t>& index) {
  std::string text;
  for (const int64_t i : index) text += (text.empty() ? "" : ", ") + std::to_string(i);
  return "[" + text + "]";
}

std::string loss_words(const ExactComparison::Loss& loss, int64_t first) {
  return "the first loss that differs is that of minibatch " +
         std::to_string(first + static_cast<int64_t>(loss.position)) + ": " + number_text(loss.got) +
         " instead of " + number_text(loss.expected);
}

std::string place_words(const StageTensor& place) {
  return in_quotes(place.name) + " of stage " + std::to_string(place.stage);
}

std::string element_words(const ExactComparison::Element& element, const std::string& from) {
  return place_words(element.place) + " differs from " + from + " at " + index_text(element.index) + ": " +
         number_text(element.got) + " instead of " + number_text(element.expected);
}

std::string first_words(const FirstDifference& first) {
  return "first of all that differs is " + first.action +
         (first.element ? ", where " + element_words(*first.element, "it") : "");
}

}  // namespace

void demand(const Verification& verification, const std::filesystem::path& run_folder) {
  if (verification.holds()) {
    const auto& against = verification.against;
    const bool compared = against && (!against->weights.empty() || against->losses.left_out > 0);
    if (!compared || against->says_something()) return;
    throw NumericalError(
        "verify: the other training cannot be told from another: rounding alone takes both too far",
        "Compare fewer minibatches, or train with a smaller learning rate. The ranks have computed what the "
        "serial reference computes.");
  }
  const ExactComparison& serial = verification.serial;
  const std::string kept = "What was compared is in " + run_folder.string() + ".";
  if (serial.equal() && verification.against) {
    throw NumericalError(
        "verify: " + parting_words(*verification.against),
        "The ranks have computed what the serial reference computes: have both trained the same "
        "program from the same start on the same minibatches with the same settings, and does "
        "this plan's weight rule compute what the other does? " +
            kept);
  }
  if (serial.equal()) {
    const UpToRounding& one = *verification.one_device;
    throw NumericalError(
        "verify: " + distance_words(one, one.beyond().front(), "one device's"),
        "It equals the serial reference: the plan computes something else than one device. " + kept);
  }
  std::string words = "verify: ";
  if (serial.first_element) {
    words += "parameter " + element_words(*serial.first_element, "the serial reference");
    if (serial.different.size() > 1)
      words += " (" + std::to_string(serial.different.size()) + " tensors differ)";
  } else {
    words += "all weights are equal to the serial reference's";
  }
  words += serial.first_loss ? "; " + loss_words(*serial.first_loss, verification.minibatches.first)
                             : "; all losses are equal";
  if (verification.first) words += "; " + first_words(*verification.first);
  if (verification.against && !verification.against->holds())
    words += "; of the other training " + parting_words(*verification.against);
  throw NumericalError(words,
                       "Of a finished run: was anything in its folder changed, or was it trained by another "
                       "version or on another kind of CPU? " +
                           kept);
}

std::string verification_table(const Verification& verification, const Plan& plan, int64_t width) {
  std::ostringstream out;
  const Span& span = verification.minibatches;
  out << (verification.plans > 1 ? "the last of " + std::to_string(verification.plans) + " plans, " : "plan ")
      << plan.shape_text() << " " << plan.schedule << " " << plan.weights << " on " << verification.ranks
      << (verification.ranks == 1 ? " rank" : " ranks") << ", minibatches " << span.first << " to "
      << span.end() - 1 << ", " << verification.places.size() << " tensors\n\n";
  if (verification.one_device) {
    out << distance_table(*verification.one_device, "from one device", width, /*with_losses=*/true) << "\n";
  }
  if (verification.against) {
    for (const AgainstOther::Weights& weights : verification.against->weights) {
      out << "after " << weights.minibatches << " minibatches, " << weights.file << "\n"
          << distance_table(weights.tensors, "from the other", width, /*with_losses=*/false) << "\n";
    }
  }
  const auto& serial = verification.serial;
  out << "serial reference   " << (serial.equal() ? "equal bit for bit: " : "DIFFERENT: ") << "losses "
      << (serial.first_loss ? "differ" : "equal") << ", "
      << verification.places.size() - serial.different.size() << " of " << verification.places.size()
      << " tensors equal\n";
  if (verification.against) {
    out << "the other training " << verdict_text(*verification.against) << "\n";
  } else {
    out << "one device         "
        << (verification.one_device
                ? verdict_text(*verification.one_device)
                : "not compared: this plan's gradients are older, or its stages update at "
                  "different times")
        << "\n";
  }
  return out.str();
}

Json verification_json(const Verification& verification) {
  const ExactComparison& serial = verification.serial;
  Json json;
  json["verdict"] = verification.holds() ? "equal" : "different";
  json["first_minibatch"] = verification.minibatches.first;
  json["minibatches"] = verification.minibatches.count;
  json["ranks"] = verification.ranks;
  json["tensors"] = verification.places.size();
  Json& exact = json["serial_reference"];
  exact["equal"] = serial.equal();
  exact["different_tensors"] = serial.different.size();
  exact["first_parameter"] = nullptr;
  if (serial.first_element) {
    exact["first_parameter"] = {{"name", serial.first_element->place.name},
                                {"stage", serial.first_element->place.stage},
                                {"index", serial.first_element->index},
                                {"value", finite_or_null(serial.first_element->got)},
                                {"expected", finite_or_null(serial.first_element->expected)}};
  }
  exact["first_loss"] = nullptr;
  if (serial.first_loss) {
    exact["first_loss"] = {
        {"minibatch", verification.minibatches.first + static_cast<int64_t>(serial.first_loss->position)},
        {"value", finite_or_null(serial.first_loss->got)},
        {"expected", finite_or_null(serial.first_loss->expected)}};
  }
  exact["first_action"] = verification.first ? Json(verification.first->action) : Json();
  json["one_device"] = verification.one_device ? distance_json(*verification.one_device) : Json();
  if (verification.against) json["against"] = against_json(*verification.against);
  return json;
}

}  // namespace pipewright
