#include "models/run/arguments.h"

#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "graph/error.h"
#include "graph/limits.h"
#include "graph/nearest.h"
#include "models/run/scalar_types.h"

namespace pipewright {
namespace {

std::string text_of(const Argument& argument) {
  struct Visitor {
    std::string operator()(const NoneArgument&) const { return "none"; }
    std::string operator()(const TensorArgument& a) const { return "tensor '" + a.name + "'"; }
    std::string operator()(const TensorsArgument& a) const {
      return std::to_string(a.names.size()) + " tensors";
    }
    std::string operator()(const DtypeArgument& a) const { return "dtype " + a.dtype; }
    std::string operator()(bool a) const { return a ? "true" : "false"; }
    std::string operator()(int64_t a) const { return "integer " + std::to_string(a); }
    std::string operator()(double a) const { return "number " + std::to_string(a); }
    std::string operator()(const std::string& a) const { return "text '" + a + "'"; }
    std::string operator()(const std::vector<int64_t>& a) const {
      return "list of " + std::to_string(a.size()) + " integers";
    }
    std::string operator()(const std::vector<double>& a) const {
      return "list of " + std::to_string(a.size()) + " numbers";
    }
    std::string operator()(const std::vector<bool>& a) const {
      return "list of " + std::to_string(a.size()) + " booleans";
    }
  };
  return std::visit(Visitor{}, argument);
}

template <typename Enum>
std::optional<c10::IValue> find_enum(const std::string& name,
                                     const std::vector<std::pair<const char*, Enum>>& table) {
  for (const auto& [known, value] : table)
    if (name == known) return c10::IValue(static_cast<int64_t>(value));
  return std::nullopt;
}

std::optional<double> as_number(const Argument& argument) {
  if (const auto* number = std::get_if<double>(&argument)) return *number;
  if (const auto* integer = std::get_if<int64_t>(&argument)) return static_cast<double>(*integer);
  return std::nullopt;
}

/// The numbers of a list argument; nullopt if it is none, or holds what does not fit Number.
template <typename Number>
std::optional<std::vector<Number>> as_numbers(const Argument& argument) {
  if (const auto* integers = std::get_if<std::vector<int64_t>>(&argument))
    return std::vector<Number>(integers->begin(), integers->end());
  if (const auto* numbers = std::get_if<std::vector<double>>(&argument)) {
    // An empty list has no type of its own.
    if (std::is_same_v<Number, double> || numbers->empty())
      return std::vector<Number>(numbers->begin(), numbers->end());
  }
  if (const auto* booleans = std::get_if<std::vector<bool>>(&argument))
    if (booleans->empty()) return std::vector<Number>();
  return std::nullopt;
}

/// A number where the schema wants a tensor: Python takes it so in `x * 2`, and it does not change x's dtype.
c10::IValue wrapped_number(const at::Scalar& number) {
  at::Tensor tensor = at::scalar_tensor(number, at::TensorOptions(number.type()));
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

/// A list, or a number that stands for one of a fixed `length`; else as convert().
std::optional<c10::IValue> convert_list(const Argument& argument, const c10::Type& element,
                                        std::optional<int32_t> length) {
  switch (element.kind()) {
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      // "int[2] stride": one number stands for both.
      if (const auto* integer = std::get_if<int64_t>(&argument); integer && length)
        return c10::IValue(std::vector<int64_t>(*length, *integer));
      if (auto numbers = as_numbers<int64_t>(argument)) return c10::IValue(std::move(*numbers));
      return std::nullopt;
    case c10::TypeKind::FloatType:
      if (const auto number = as_number(argument); number && length)
        return c10::IValue(std::vector<double>(*length, *number));
      if (auto numbers = as_numbers<double>(argument)) return c10::IValue(std::move(*numbers));
      return std::nullopt;
    case c10::TypeKind::BoolType: {
      c10::List<bool> list;
      if (const auto* booleans = std::get_if<std::vector<bool>>(&argument)) {
        for (const bool value : *booleans) list.push_back(value);
        return c10::IValue(std::move(list));
      }
      if (const auto numbers = as_numbers<int64_t>(argument); numbers && numbers->empty())
        return c10::IValue(std::move(list));
      return std::nullopt;
    }
    case c10::TypeKind::NumberType: {
      c10::List<at::Scalar> list;
      if (const auto* integers = std::get_if<std::vector<int64_t>>(&argument)) {
        for (const int64_t value : *integers) list.push_back(value);
        return c10::IValue(std::move(list));
      }
      if (const auto numbers = as_numbers<double>(argument)) {
        for (const double value : *numbers) list.push_back(value);
        return c10::IValue(std::move(list));
      }
      return std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

/// A literal as the schema's type wants it; nullopt if it does not fit. `length`: of lists with a fixed one
/// ("int[2]").
std::optional<c10::IValue> convert(const Argument& argument, const c10::Type& type,
                                   std::optional<int32_t> length) {
  const auto* integer = std::get_if<int64_t>(&argument);
  const auto* boolean = std::get_if<bool>(&argument);
  const auto* text = std::get_if<std::string>(&argument);
  switch (type.kind()) {
    case c10::TypeKind::OptionalType:
      if (std::holds_alternative<NoneArgument>(argument)) return c10::IValue();
      return convert(argument, *type.castRaw<c10::OptionalType>()->getElementType(), length);
    case c10::TypeKind::TensorType:
      if (boolean) return wrapped_number(*boolean);
      if (integer) return wrapped_number(*integer);
      if (const auto number = as_number(argument)) return wrapped_number(*number);
      return std::nullopt;
    case c10::TypeKind::NumberType:
      if (boolean) return c10::IValue(*boolean);
      if (integer) return c10::IValue(*integer);
      if (const auto number = as_number(argument)) return c10::IValue(*number);
      return std::nullopt;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      if (integer) return c10::IValue(*integer);
      return std::nullopt;
    case c10::TypeKind::FloatType:
    case c10::TypeKind::SymFloatType:
      if (const auto number = as_number(argument)) return c10::IValue(*number);
      return std::nullopt;
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType:
      if (boolean) return c10::IValue(*boolean);
      return std::nullopt;
    case c10::TypeKind::StringType:
      if (text) return c10::IValue(*text);
      return std::nullopt;
    case c10::TypeKind::ScalarTypeType:
      if (const auto* dtype = std::get_if<DtypeArgument>(&argument))
        return c10::IValue(static_cast<int64_t>(scalar_type_of(dtype->dtype)));
      return std::nullopt;
    case c10::TypeKind::LayoutType:
      if (text) return find_enum<c10::Layout>(*text, {{"strided", c10::kStrided}});
      return std::nullopt;
    case c10::TypeKind::MemoryFormatType:
      if (text)
        return find_enum<c10::MemoryFormat>(*text, {{"contiguous_format", c10::MemoryFormat::Contiguous},
                                                    {"preserve_format", c10::MemoryFormat::Preserve},
                                                    {"channels_last", c10::MemoryFormat::ChannelsLast},
                                                    {"channels_last_3d", c10::MemoryFormat::ChannelsLast3d}});
      return std::nullopt;
    case c10::TypeKind::DeviceObjType:
      try {
        if (text) return c10::IValue(c10::Device(*text));
      } catch (const c10::Error&) {
        // Not a device: falls through to the message that does not fit.
      }
      return std::nullopt;
    case c10::TypeKind::ListType:
      return convert_list(argument, *type.castRaw<c10::ListType>()->getElementType(), length);
    default:
      return std::nullopt;
  }
}

/// The place that a tensor argument fills; nullopt if the schema wants no tensors there.
std::optional<TensorPlace> tensor_place(const Argument& argument, const c10::Type& declared) {
  const c10::Type* type = &declared;
  while (type->kind() == c10::TypeKind::OptionalType)
    type = type->castRaw<c10::OptionalType>()->getElementType().get();
  if (type->kind() == c10::TypeKind::TensorType) {
    if (const auto* one = std::get_if<TensorArgument>(&argument))
      return TensorPlace{TensorPlace::Kind::kTensor, 0, {one->name}};
    return std::nullopt;
  }
  if (type->kind() != c10::TypeKind::ListType) return std::nullopt;
  const c10::Type& element = *type->castRaw<c10::ListType>()->getElementType();
  const bool optional =
      element.kind() == c10::TypeKind::OptionalType &&
      element.castRaw<c10::OptionalType>()->getElementType()->kind() == c10::TypeKind::TensorType;
  if (element.kind() != c10::TypeKind::TensorType && !optional) return std::nullopt;
  const auto kind = optional ? TensorPlace::Kind::kOptionalTensors : TensorPlace::Kind::kTensors;
  if (const auto* many = std::get_if<TensorsArgument>(&argument)) return TensorPlace{kind, 0, many->names};
  if (const auto numbers = as_numbers<int64_t>(argument); numbers && numbers->empty())
    return TensorPlace{kind, 0, {}};
  return std::nullopt;
}

/// Sizes, places and counts. Operators add and multiply them, not all with a look at the result. The largest
/// integer stands for "to the end" in a slice.
void check_integers(const Argument& argument, const c10::Argument& wanted, const std::string& where) {
  const c10::Type* type = wanted.type().get();
  while (type->kind() == c10::TypeKind::OptionalType)
    type = type->castRaw<c10::OptionalType>()->getElementType().get();
  if (type->kind() == c10::TypeKind::ListType) type = type->castRaw<c10::ListType>()->getElementType().get();
  if (type->kind() != c10::TypeKind::IntType && type->kind() != c10::TypeKind::SymIntType) return;
  const auto check = [&](int64_t value) {
    const bool end = value == std::numeric_limits<int64_t>::max() && wanted.name() == "end";
    if (!end && (value < -kMostCount || value > kMostCount))
      throw InputError(where + ": argument '" + wanted.name() + "': " + std::to_string(value) +
                       " is not in -2^53..2^53");
  };
  if (const auto* integer = std::get_if<int64_t>(&argument)) check(*integer);
  if (const auto* integers = std::get_if<std::vector<int64_t>>(&argument))
    std::for_each(integers->begin(), integers->end(), check);
}

}  // namespace

PreparedArguments prepare_arguments(const Node& node, const c10::FunctionSchema& schema,
                                    const std::string& where) {
  const auto& declared = schema.arguments();
  std::vector<const Argument*> given(declared.size(), nullptr);
  for (const auto& [name, argument] : node.arguments) {
    const auto found = std::find_if(declared.begin(), declared.end(),
                                    [&name = name](const c10::Argument& a) { return a.name() == name; });
    if (found == declared.end()) {
      std::vector<std::string> names;
      for (const auto& a : declared) names.push_back(a.name());
      throw InputError(where + " has no argument '" + name + "'" + suggestion(name, names));
    }
    auto& place = given[found - declared.begin()];
    if (place) throw InputError(where + ": argument '" + name + "' is given twice");
    place = &argument;
  }

  PreparedArguments prepared;
  for (size_t i = 0; i < declared.size(); ++i) {
    const c10::Argument& wanted = declared[i];
    if (!given[i]) {
      if (!wanted.default_value())
        throw InputError(where + ": argument '" + wanted.name() + "' (" + wanted.type()->str() +
                         ") is missing and has no default");
      prepared.stack.push_back(*wanted.default_value());
      continue;
    }
    check_integers(*given[i], wanted, where);
    // real_type() tells dtypes, layouts and memory formats from the integers they travel as.
    if (auto place = tensor_place(*given[i], *wanted.real_type())) {
      place->position = i;
      prepared.places.push_back(std::move(*place));
      prepared.stack.emplace_back();
    } else if (auto value = convert(*given[i], *wanted.real_type(), wanted.N())) {
      prepared.stack.push_back(std::move(*value));
    } else {
      throw InputError(where + ": argument '" + wanted.name() + "' is " + text_of(*given[i]) + "; expected " +
                       wanted.real_type()->str());
    }
  }
  return prepared;
}

}  // namespace pipewright
