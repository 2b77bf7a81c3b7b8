// The form of messages on their way: a line of JSON, the kind and what the kind has to say.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <variant>

#include "graph/error.h"
#include "graph/json.h"

namespace pipewright {

/// A row of a table of messages: how one alternative of a variant is written and read.
template <typename T>
struct MessageKind {
  using Message = T;
  const char* name;
  Json (*write)(const T&);
  T (*read)(const Json&);
};

/// `kinds`: a tuple with a MessageKind for each alternative.
template <typename Variant, typename Kinds>
std::string encoded(const Variant& message, const Kinds& kinds) {
  return std::visit(
      [&]<typename T>(const T& value) {
        const auto& kind = std::get<MessageKind<T>>(kinds);
        return Json::array({kind.name, kind.write(value)}).dump();
      },
      message);
}

/// InputError if `text` is not what encoded() makes.
template <typename Variant, typename Kinds>
Variant decoded(const std::string& text, const Kinds& kinds) {
  static_assert(std::variant_size_v<Variant> == std::tuple_size_v<Kinds>);
  const Json json = parse_json(text, "message of a rank");
  try {
    const auto& name = json.at(0).get_ref<const std::string&>();
    std::optional<Variant> found;
    std::apply(
        [&](const auto&... kind) {
          static_cast<void>(((kind.name == name && (found.emplace(kind.read(json.at(1))), true)) || ...));
        },
        kinds);
    if (found) return std::move(*found);
  } catch (const Json::exception& error) {
    throw InputError(std::string("message of a rank: ") + error.what());
  }
  throw InputError("message of a rank: of no known kind: " + in_quotes(text.substr(0, 100)));
}

}  // namespace pipewright
