// The text form of actions.
#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>

#include "graph/error.h"
#include "runtime/schedule/schedule.h"

namespace pipewright {
namespace {

struct KindRow {
  ActionKind kind;
  const char* text;
};
constexpr std::array<KindRow, 10> kKinds = {{{ActionKind::kReceiveActivation, "RA"},
                                             {ActionKind::kForward, "F"},
                                             {ActionKind::kSendActivation, "SA"},
                                             {ActionKind::kReceiveGradient, "RG"},
                                             {ActionKind::kBackward, "B"},
                                             {ActionKind::kBackwardInput, "BI"},
                                             {ActionKind::kBackwardWeight, "BW"},
                                             {ActionKind::kSendGradient, "SG"},
                                             {ActionKind::kReduce, "AR"},
                                             {ActionKind::kUpdate, "U"}}};

// Strict, so that text and actions correspond one to one: no sign, no leading zero, nothing after the number.
bool parse_index(const std::string& digits, int64_t& index) {
  if (digits.empty() || digits[0] == '-' || (digits[0] == '0' && digits.size() > 1)) return false;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  return error == std::errc() && end == digits.data() + digits.size();
}

}  // namespace

const char* to_text(ActionKind kind) {
  const auto row =
      std::find_if(kKinds.begin(), kKinds.end(), [&](const KindRow& k) { return k.kind == kind; });
  PW_CHECK(row != kKinds.end(), "kind " << static_cast<int>(kind));
  return row->text;
}

std::string to_text(const Action& action) {
  const std::string text = to_text(action.kind) + std::to_string(action.index);
  return action.stage == Action::kOnlyStage ? text : std::to_string(action.stage) + text;
}

std::string to_text(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& action : actions) {
    if (!text.empty()) text += ' ';
    text += to_text(action);
  }
  return text;
}

std::vector<Action> parse_actions(const std::string& text) {
  std::vector<Action> actions;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const size_t letters = std::min(word.find_first_not_of("0123456789"), word.size());
    const size_t digits = std::min(word.find_first_not_of("ABFGIRSUW", letters), word.size());
    const std::string kind = word.substr(letters, digits - letters);
    const auto row =
        std::find_if(kKinds.begin(), kKinds.end(), [&](const KindRow& k) { return k.text == kind; });
    Action action;
    if (row == kKinds.end() || !parse_index(word.substr(digits), action.index) ||
        (letters > 0 && !parse_index(word.substr(0, letters), action.stage)))
      throw InputError(
          "actions, word " + std::to_string(actions.size() + 1) + ": got '" + word +
              "', expected one of RA F SA RG B BI BW SG AR U and a number, such as F3, or 2F3 at stage 2",
          "Actions are separated by blanks; the number is a minibatch (AR, U: a round); numbers have no "
          "sign and no leading zero.");
    action.kind = row->kind;
    actions.push_back(action);
  }
  return actions;
}

}  // namespace pipewright
