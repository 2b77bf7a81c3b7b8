#include "graph/pipedream.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <functional>
#include <optional>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "graph/error.h"
#include "graph/limits.h"
#include "graph/nearest.h"

namespace pipewright {
namespace {

const char* const kSeparator = " -- ";
constexpr size_t kNone = static_cast<size_t>(-1);
constexpr size_t kMostWithoutEdge = 100;  // a network has edges; the ways to cut n nodes without one are 2^n

struct Entry {
  size_t line = 0;  // 1 is the first
  std::string name;
  std::string description;
  double forward_seconds = 0;
  double backward_seconds = 0;
  int64_t activation_bytes = 0;
  int64_t parameter_bytes = 0;
  std::optional<int64_t> stage;
  std::vector<size_t> inputs;  // positions, in the order of the edge lines, each once

  // Only a source is an input: what has a predecessor computes something, whatever it is called.
  bool is_input() const { return inputs.empty() && description.rfind("Input", 0) == 0; }
};

std::vector<std::string> split(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end = text.find(separator); end != std::string::npos; end = text.find(separator, begin)) {
    parts.push_back(text.substr(begin, end - begin));
    begin = end + separator.size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

class Parser {
 public:
  Parser(const std::string& text, const std::string& where) : where_(where) { read_lines(text); }

  const std::vector<Entry>& entries() const { return entries_; }

  // Positions in an order in which the nodes can run.
  std::vector<size_t> order() const {
    std::vector<size_t> missing(entries_.size());
    std::vector<std::vector<size_t>> readers(entries_.size());
    std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;
    for (size_t i = 0; i < entries_.size(); ++i) {
      missing[i] = entries_[i].inputs.size();
      for (const size_t input : entries_[i].inputs) readers[input].push_back(i);
      if (missing[i] == 0) ready.push(i);
    }
    std::vector<size_t> order;
    while (!ready.empty()) {
      const size_t node = ready.top();
      ready.pop();
      order.push_back(node);
      for (const size_t reader : readers[node]) {
        if (--missing[reader] == 0) ready.push(reader);
      }
    }
    if (order.size() < entries_.size()) fail_cycle(missing);
    return order;
  }

 private:
  [[noreturn]] void fail(size_t line, const std::string& message, const std::string& remedy = "") const {
    throw InputError(where_ + ":" + std::to_string(line) + ": " + message, remedy);
  }

  void read_lines(const std::string& text) {
    try {
      Json(text).dump();  // strict: names and descriptions go into JSON documents
    } catch (const Json::type_error&) {
      throw InputError(where_ + ": not UTF-8 text; expected a graph.txt of PipeDream");
    }
    size_t line = 0;
    std::vector<std::pair<size_t, std::string>> edges;
    for (std::string content : split(text, "\n")) {
      ++line;
      if (!content.empty() && content.back() == '\r') content.pop_back();
      if (content.find_first_not_of(" \t") == std::string::npos) continue;
      for (size_t i = 1; i < content.size(); ++i) {
        if (static_cast<unsigned char>(content[i]) < 0x20)
          fail(line, "a control character in it: not a graph.txt");
      }
      if (content.front() == '\t') {
        edges.emplace_back(line, content.substr(1));
      } else {
        read_node(line, content);
      }
    }
    if (entries_.empty()) {
      throw InputError(where_ +
                       ": no node; expected a graph.txt of PipeDream: lines \"ID -- DESCRIPTION -- TIMES\"");
    }
    if (entries_.size() > kMostWithoutEdge && edges.empty()) {
      throw InputError(where_ + ": " + std::to_string(entries_.size()) +
                           " nodes and no edge; expected lines with a tab, then \"ID -- ID\"",
                       "The file was cut, or tabs have become blanks.");
    }
    for (const auto& [edge_line, content] : edges) read_edge(edge_line, content);
  }

  void read_node(size_t line, const std::string& content) {
    const std::vector<std::string> parts = split(content, kSeparator);
    if (parts.size() != 3 && parts.size() != 4) {
      fail(line, "got " + std::to_string(parts.size()) +
                     " parts between \" -- \", expected ID, description, times and sizes" +
                     (parts.size() == 2 ? "; an edge starts with a tab" : ""));
    }
    Entry entry;
    entry.line = line;
    entry.name = parts[0];
    if (entry.name.empty()) fail(line, "the ID is empty");
    entry.description = parts[1];
    const std::vector<std::string> fields = split(parts[2], ", ");
    if (fields.size() != 4) {
      fail(line, "got " + std::to_string(fields.size()) +
                     " fields, expected forward_compute_time, backward_compute_time, activation_size, "
                     "parameter_size");
    }
    entry.forward_seconds = milliseconds(line, "forward_compute_time", fields[0]);
    entry.backward_seconds = milliseconds(line, "backward_compute_time", fields[1]);
    entry.activation_bytes = activation(line, fields[2]);
    entry.parameter_bytes = bytes(line, "parameter_size", value_of(line, "parameter_size", fields[3]));
    if (parts.size() == 4) entry.stage = stage(line, parts[3]);
    const auto [it, fresh] = position_.emplace(entry.name, entries_.size());
    if (!fresh) {
      fail(line, "there is another node " + in_quotes(entry.name) + ", in line " +
                     std::to_string(entries_[it->second].line));
    }
    entries_.push_back(std::move(entry));
  }

  void read_edge(size_t line, const std::string& content) {
    const std::vector<std::string> ends = split(content, kSeparator);
    if (ends.size() != 2)
      fail(line, "got " + in_quotes(content) + ", expected an edge: a tab, then \"ID -- ID\"");
    const size_t from = find(line, ends[0]);
    Entry& to = entries_[find(line, ends[1])];
    const size_t target = static_cast<size_t>(&to - entries_.data());
    if (edges_.insert(from * entries_.size() + target).second) to.inputs.push_back(from);
  }

  size_t find(size_t line, const std::string& name) const {
    const auto it = position_.find(name);
    if (it != position_.end()) return it->second;
    std::vector<std::string> names;
    for (const Entry& entry : entries_) names.push_back(entry.name);
    const std::string near = nearest(name, names);
    fail(line, "edge to the unknown node " + in_quotes(name) +
                   (near.empty() ? "" : "; did you mean '" + near + "'?"));
  }

  std::string value_of(size_t line, const std::string& key, const std::string& field) const {
    if (field.rfind(key + "=", 0) != 0) fail(line, "got " + in_quotes(field) + ", expected " + key + "=...");
    return field.substr(key.size() + 1);
  }

  // The double nearest to `text` times 10^shift: the exponent is added to the decimals, not multiplied in.
  double number(size_t line, const std::string& key, const std::string& text, int shift,
                double largest) const {
    std::string decimals = text;
    int exponent = 0;
    if (const size_t e = text.find_first_of("eE"); e != std::string::npos) {
      decimals = text.substr(0, e);
      const char* first = text.data() + e + 1;
      if (first != text.data() + text.size() && *first == '+') ++first;
      const auto [rest, error] = std::from_chars(first, text.data() + text.size(), exponent);
      if (error != std::errc() || rest != text.data() + text.size() || std::abs(exponent) > 400)
        decimals.clear();
    }
    const std::string shifted = decimals + "e" + std::to_string(exponent + shift);
    double value = 0;
    const char* const end = shifted.data() + shifted.size();
    const auto [rest, error] = std::from_chars(shifted.data(), end, value);
    const bool tiny = error == std::errc::result_out_of_range && exponent < 0;
    if (!tiny && (decimals.empty() || error != std::errc() || rest != end || !std::isfinite(value))) {
      fail(line, key + ": got " + in_quotes(text) + ", expected a number");
    }
    if (tiny) value = 0;
    if (value < 0) fail(line, key + ": " + text + " is less than 0");
    if (value > largest) fail(line, key + ": " + text + " is out of range");
    return std::abs(value);  // "-0.000" is 0
  }

  double milliseconds(size_t line, const std::string& key, const std::string& field) const {
    return number(line, key, value_of(line, key, field), -3, kMostSeconds);
  }

  int64_t bytes(size_t line, const std::string& key, const std::string& text) const {
    return std::llround(number(line, key, text, 0, static_cast<double>(kMostBytes)));
  }

  int64_t activation(size_t line, const std::string& field) const {
    const std::string key = "activation_size";
    const std::string text = value_of(line, key, field);
    if (text.empty() || text.front() != '[') return bytes(line, key, text);
    if (text.back() != ']') fail(line, key + ": got " + in_quotes(text) + ", expected [SIZE; SIZE; ...]");
    int64_t sum = 0;
    for (const std::string& part : split(text.substr(1, text.size() - 2), "; "))
      sum += bytes(line, key, part);
    if (sum > kMostBytes) fail(line, key + ": the sum is out of range");
    return sum;
  }

  int64_t stage(size_t line, const std::string& field) const {
    const std::string text = value_of(line, "stage_id", field);
    int64_t value = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || rest != text.data() + text.size() || value < 0 || value >= kMostRanks) {
      fail(line, "stage_id: got " + in_quotes(text) + ", expected an integer from 0 on");
    }
    return value;
  }

  // Walks backwards along nodes that never became ready until one comes again.
  [[noreturn]] void fail_cycle(const std::vector<size_t>& missing) const {
    size_t node = 0;
    while (missing[node] == 0) ++node;
    std::vector<size_t> path;
    std::vector<size_t> seen(entries_.size(), kNone);
    while (seen[node] == kNone) {
      seen[node] = path.size();
      path.push_back(node);
      const std::vector<size_t>& inputs = entries_[node].inputs;
      node = *std::find_if(inputs.begin(), inputs.end(), [&](size_t input) { return missing[input] != 0; });
    }
    std::string text = entries_[node].name;
    constexpr size_t kMostShown = 8;
    const size_t length = path.size() - seen[node];
    for (size_t i = 0; i < length && i < kMostShown; ++i)
      text += " <- " + entries_[path[seen[node] + (i + 1) % length]].name;
    if (length > kMostShown) text += " <- ...";
    fail(entries_[node].line, "the edges make a cycle: " + text);
  }

  const std::string& where_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> position_;
  std::unordered_set<size_t> edges_;  // from * nodes + to
};

std::string model_name(const std::string& where) {
  const std::filesystem::path path(where);
  if (path.stem() == "graph" && path.has_parent_path()) return path.parent_path().filename().string();
  return path.stem().string();
}

// Shortest digits that read back equal, in ms: the decimal point of the seconds moved by three.
std::string milliseconds_text(double seconds) {
  char buffer[512];
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), seconds, std::chars_format::fixed);
  std::string whole(buffer, result.ptr);
  std::string decimals;
  if (const size_t point = whole.find('.'); point != std::string::npos) {
    decimals = whole.substr(point + 1);
    whole.resize(point);
  }
  decimals.resize(std::max<size_t>(decimals.size(), 6), '0');  // three to move and three to stay
  whole += decimals.substr(0, 3);
  whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size() - 1));
  return whole + "." + decimals.substr(3);
}

std::string bytes_text(int64_t bytes) { return std::to_string(bytes) + ".000"; }

void check_node_name(const std::string& name) {
  const bool control = std::any_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20; });
  if (!name.empty() && name.find(kSeparator) == std::string::npos && !control) return;
  throw InputError("graph.txt cannot hold the name " + in_quotes(name) +
                   ": it is empty or has \" -- \" or a control character in it");
}

// A description on one line, and none that would make an ordinary source an input.
std::string description_text(const ProfiledNode& node) {
  std::string text = node.layer.empty() ? node.name : node.layer;
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  for (size_t at = text.find(kSeparator); at != std::string::npos; at = text.find(kSeparator))
    text.replace(at, 4, " - ");
  if (node.inputs.empty() && text.rfind("Input", 0) == 0) text = "Source " + text;
  return text;
}

std::string node_line(const std::string& name, const std::string& description, double forward_seconds,
                      double backward_seconds, const std::string& activation, int64_t parameter_bytes,
                      std::optional<int64_t> stage) {
  return name + kSeparator + description + kSeparator +
         "forward_compute_time=" + milliseconds_text(forward_seconds) +
         ", backward_compute_time=" + milliseconds_text(backward_seconds) +
         ", activation_size=" + activation + ", parameter_size=" + bytes_text(parameter_bytes) +
         (stage ? kSeparator + ("stage_id=" + std::to_string(*stage)) : "") + "\n";
}

}  // namespace

Profile parse_pipedream_profile(const std::string& text, const std::string& where) {
  const Parser parser(text, where);
  Profile profile;
  profile.model = model_name(where);
  profile.device = kUnknownDevice;
  profile.provenance = {{"source", "graph.txt of PipeDream's profiler"}};
  for (const size_t i : parser.order()) {
    const Entry& entry = parser.entries()[i];
    if (entry.is_input()) {
      profile.input_seconds += entry.forward_seconds;
      continue;
    }
    ProfiledNode node;
    node.name = entry.name;
    node.layer = entry.description;
    for (const size_t input : entry.inputs) node.inputs.push_back(parser.entries()[input].name);
    node.outputs.push_back({entry.name, entry.activation_bytes});
    node.forward_seconds = entry.forward_seconds;
    node.backward_input_seconds = entry.backward_seconds;
    node.saved_bytes = entry.activation_bytes;
    node.parameter_bytes = entry.parameter_bytes;
    node.trainable_parameter_bytes = entry.parameter_bytes;
    profile.whole.forward_seconds += node.forward_seconds;
    profile.whole.backward_seconds += node.backward_seconds();
    profile.nodes.push_back(std::move(node));
  }
  profile.validate(where);
  return profile;
}

std::map<std::string, int64_t> parse_pipedream_stages(const std::string& text, const std::string& where) {
  const Parser parser(text, where);
  std::map<std::string, int64_t> stages;
  for (const Entry& entry : parser.entries()) {
    if (entry.stage) stages.emplace(entry.name, *entry.stage);
  }
  return stages;
}

std::string pipedream_profile_text(const Profile& profile, const std::vector<int64_t>& stages) {
  PW_CHECK(stages.empty() || stages.size() == profile.nodes.size(), "one stage for each node, or none");
  std::unordered_map<std::string, std::string> maker;  // value -> node
  std::unordered_set<std::string> node_names;
  for (const ProfiledNode& node : profile.nodes) {
    check_node_name(node.name);
    node_names.insert(node.name);
    for (const ProfiledValue& output : node.outputs) maker.emplace(output.name, node.name);
  }

  std::vector<std::string> inputs;  // of the graph, in the order of their first reader
  for (const ProfiledNode& node : profile.nodes) {
    for (const std::string& value : node.inputs) {
      if (maker.count(value) != 0) continue;
      check_node_name(value);
      // A value and a node may share a name in a profile; in graph.txt an input is a node.
      std::string name = value;
      while (node_names.count(name) != 0) name += "_input";
      node_names.insert(name);
      maker.emplace(value, name);
      inputs.push_back(name);
    }
  }

  if (inputs.empty() && profile.input_seconds > 0) {  // nobody reads it, but its time is to be kept
    inputs.push_back("input");
    while (node_names.count(inputs.front()) != 0) inputs.front() += "_input";
  }

  std::string text;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string description = inputs.size() == 1 ? "Input" : "Input" + std::to_string(i);
    text += node_line(inputs[i], description, i == 0 ? profile.input_seconds : 0, 0, bytes_text(0), 0,
                      stages.empty() ? std::nullopt : std::optional<int64_t>(0));
  }
  for (size_t i = 0; i < profile.nodes.size(); ++i) {
    const ProfiledNode& node = profile.nodes[i];
    std::vector<std::string> sizes;
    for (const ProfiledValue& output : node.outputs) sizes.push_back(bytes_text(output.bytes));
    if (sizes.empty()) sizes.push_back(bytes_text(0));
    text += node_line(node.name, description_text(node), node.forward_seconds, node.backward_seconds(),
                      sizes.size() == 1 ? sizes.front() : "[" + join(sizes, "; ") + "]", node.parameter_bytes,
                      stages.empty() ? std::nullopt : std::optional<int64_t>(stages[i]));
  }
  for (const ProfiledNode& node : profile.nodes) {
    std::unordered_set<std::string> written;
    for (const std::string& value : node.inputs) {
      const std::string& from = maker.at(value);
      if (written.insert(from).second) text += "\t" + from + kSeparator + node.name + "\n";
    }
  }
  return text;
}

bool looks_like_pipedream_profile(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos || text[begin] == '{' || text[begin] == '[') return false;
  return text.substr(begin, text.find('\n', begin) - begin).find(kSeparator) != std::string::npos;
}

}  // namespace pipewright
