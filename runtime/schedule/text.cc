// The text form of actions.
#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>

#include "graph/error.h"
#include "runtime/schedule/schedule.h"

namespace pipewright {
namespace {

constexpr std::array<ActionWords, 11> kKinds = {
    {{ActionKind::kReceiveActivation, "RA", "receive activation", "wait"},
     {ActionKind::kForward, "F", "forward", "forward"},
     {ActionKind::kSendActivation, "SA", "send activation", "send"},
     {ActionKind::kReceiveGradient, "RG", "receive gradient", "wait"},
     {ActionKind::kBackward, "B", "backward", "backward"},
     {ActionKind::kBackwardInput, "BI", "backward (inputs)", "backward input"},
     {ActionKind::kBackwardWeight, "BW", "backward (weights)", "backward weight"},
     {ActionKind::kSendGradient, "SG", "send gradient", "send"},
     {ActionKind::kReduce, "AR", "all-reduce of gradients", "reduce"},
     {ActionKind::kUpdate, "U", "optimizer step", "update"},
     {ActionKind::kAverage, "AW", "average of weights", "average"}}};

// Strict, so that text and actions correspond one to one: no sign, no leading zero, nothing after the number.
bool parse_index(const std::string& digits, int64_t& index) {
  if (digits.empty() || digits[0] == '-' || (digits[0] == '0' && digits.size() > 1)) return false;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  return error == std::errc() && end == digits.data() + digits.size();
}

}  // namespace

const ActionWords& words_of(ActionKind kind) {
  const auto row = std::find_if(kKinds.begin(), kKinds.end(), [&](const auto& k) { return k.kind == kind; });
  PW_CHECK(row != kKinds.end(), "kind " << static_cast<int>(kind));
  return *row;
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
        std::find_if(kKinds.begin(), kKinds.end(), [&](const ActionWords& k) { return k.code == kind; });
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

std::string to_text(const std::vector<std::vector<Action>>& lists, const PipelineShape& shape) {
  const std::vector<Placement> ranks = placements(shape);
  PW_CHECK_EQ(lists.size(), ranks.size());
  std::string text;
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    text += rank_label(shape.number_of(static_cast<int64_t>(rank)), ranks[rank]) + " |";
    if (!lists[rank].empty()) text += ' ' + to_text(lists[rank]);
    text += '\n';
  }
  return text;
}

std::vector<std::vector<Action>> parse_schedule(const std::string& text, const PipelineShape& shape) {
  const std::vector<Placement> ranks = placements(shape);
  std::vector<std::vector<Action>> lists;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::string where = "schedule, line " + std::to_string(lists.size() + 1) + ": ";
    if (lists.size() == ranks.size())
      throw InputError(where + "got '" + line + "', expected the end after " + std::to_string(ranks.size()) +
                       " ranks");
    const std::string label =
        rank_label(shape.number_of(static_cast<int64_t>(lists.size())), ranks[lists.size()]) + " |";
    if (line.compare(0, label.size(), label) != 0)
      throw InputError(where + "got '" + line.substr(0, label.size()) + "', expected '" + label +
                       "' and the actions of the rank");
    try {
      lists.push_back(parse_actions(line.substr(label.size())));
    } catch (const InputError& error) {
      throw InputError(where + error.what(), error.remedy());
    }
  }
  if (lists.size() < ranks.size())
    throw InputError("schedule: ends after " + std::to_string(lists.size()) + " ranks, expected " +
                     std::to_string(ranks.size()));
  return lists;
}

}  // namespace pipewright
