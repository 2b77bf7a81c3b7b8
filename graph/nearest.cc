#include "graph/nearest.h"

#include <algorithm>
#include <cctype>

namespace pipewright {
namespace {

// Optimal string alignment distance. Words longer than this are no slips of the hand: comparing them would
// only cost time.
constexpr size_t kLongestWord = 200;
constexpr size_t kMostListed = 12;

std::string lower(const std::string& word) {
  std::string result = word;
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  if (word.empty() || word.size() > kLongestWord) return "";
  const std::string wanted = lower(word);
  std::string best;
  size_t best_distance = kLongestWord + 1;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > kLongestWord) continue;
    const size_t longer = std::max(word.size(), candidate.size());
    const size_t shorter = std::min(word.size(), candidate.size());
    // What shares no letter is no slip, even where two edits would do.
    const size_t limit = std::min(std::max<size_t>(2, longer / 3), longer - 1);
    if (longer - shorter > limit || longer - shorter >= best_distance) continue;
    const size_t d = distance(wanted, lower(candidate));
    if (d <= limit && d < best_distance) {
      best = candidate;
      best_distance = d;
    }
  }
  return best;
}

std::string suggestion(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string near = nearest(word, candidates);
  if (!near.empty()) return "; did you mean '" + near + "'?";
  if (candidates.empty()) return "";
  std::string text = "; known: ";
  for (size_t i = 0; i < candidates.size() && i < kMostListed; ++i) text += (i ? ", " : "") + candidates[i];
  if (candidates.size() > kMostListed) text += ", ... (" + std::to_string(candidates.size()) + " in all)";
  return text;
}

}  // namespace pipewright
