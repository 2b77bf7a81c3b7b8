#include "runtime/schedule/trace_events.h"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>

#include "graph/error.h"

namespace pipewright {
namespace {

// Names come from anywhere; what is not UTF-8 must not spoil the document.
std::string json_quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string metadata(const char* what, int64_t process, int64_t thread, const std::string& arguments) {
  std::ostringstream event;
  event << R"({"ph":"M","name":")" << what << R"(","pid":)" << process << R"(,"tid":)" << thread
        << R"(,"args":{)" << arguments << "}}";
  return event.str();
}

std::string arguments_of(const std::vector<std::pair<std::string, int64_t>>& values) {
  std::string text;
  for (const auto& [name, value] : values)
    text += (text.empty() ? "" : ",") + json_quoted(name) + ":" + std::to_string(value);
  return R"(,"args":{)" + text + "}";
}

std::string microseconds(double seconds) {
  char text[64];
  std::snprintf(text, sizeof text, "%.3f", seconds * 1e6);
  return text;
}

}  // namespace

void TraceWriter::name_process(int64_t process, const std::string& name) {
  events_.push_back(metadata("process_name", process, 0, "\"name\":" + json_quoted(name)));
  events_.push_back(metadata("process_sort_index", process, 0, "\"sort_index\":" + std::to_string(process)));
}

void TraceWriter::name_thread(int64_t process, int64_t thread, const std::string& name) {
  events_.push_back(metadata("thread_name", process, thread, "\"name\":" + json_quoted(name)));
  events_.push_back(
      metadata("thread_sort_index", process, thread, "\"sort_index\":" + std::to_string(thread)));
}

void TraceWriter::add(const TraceSpan& span) {
  PW_CHECK(
      std::isfinite(span.begin_seconds) && std::isfinite(span.duration_seconds) && span.duration_seconds >= 0,
      span.name << " from " << span.begin_seconds << " s for " << span.duration_seconds << " s");
  std::ostringstream event;
  event << R"({"ph":"X","name":)" << json_quoted(span.name) << R"(,"cat":)" << json_quoted(span.category)
        << R"(,"pid":)" << span.process << R"(,"tid":)" << span.thread << R"(,"ts":)"
        << microseconds(span.begin_seconds) << R"(,"dur":)" << microseconds(span.duration_seconds);
  if (!span.arguments.empty()) event << arguments_of(span.arguments);
  event << "}";
  events_.push_back(event.str());
}

void TraceWriter::add_counter(int64_t process, const std::string& name, double seconds,
                              const std::vector<std::pair<std::string, int64_t>>& values) {
  PW_CHECK(std::isfinite(seconds), name << " at " << seconds << " s");
  events_.push_back(R"({"ph":"C","name":)" + json_quoted(name) + R"(,"pid":)" + std::to_string(process) +
                    R"(,"ts":)" + microseconds(seconds) + arguments_of(values) + "}");
}

void TraceWriter::append(const std::string& json, double later_seconds) {
  nlohmann::ordered_json document = nlohmann::ordered_json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object() || !document.contains("traceEvents") || !document["traceEvents"].is_array())
    throw InputError("trace: got a text of " + std::to_string(json.size()) +
                     " bytes, expected a JSON object with an array 'traceEvents'");
  for (auto& event : document["traceEvents"]) {
    if (later_seconds != 0 && event.contains("ts")) {
      constexpr double kDecimals = 1e3;
      const double microseconds = event["ts"].get<double>() + later_seconds * 1e6;
      event["ts"] = std::round(microseconds * kDecimals) / kDecimals;
    }
    events_.push_back(event.dump());
  }
}

void TraceWriter::write(std::ostream& out) const {
  out << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  const char* separator = "\n";
  for (const std::string& event : events_) {
    out << separator << event;
    separator = ",\n";
  }
  out << "\n]}\n";
}

std::string TraceWriter::json() const {
  std::ostringstream out;
  write(out);
  return out.str();
}

}  // namespace pipewright
