#include "models/exported/pt2_symbols.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <vector>

#include "graph/error.h"

namespace pipewright {
namespace {

constexpr int kDeepest = 64;  // calls within each other

/// Recursive descent over one expression: NAME(argument, ...).
class Parser {
 public:
  Parser(const std::string& text, const std::map<std::string, int64_t>& values, const std::string& where)
      : text_(text), values_(values), where_(where) {}

  int64_t whole() {
    const int64_t value = call(0);
    if (at_ != text_.size()) misunderstood();
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw InputError(where_ + ": the size " + in_quotes(text_) + " " + message);
  }
  [[noreturn]] void misunderstood() const {
    fail("is not understood from " + in_quotes(text_.substr(std::min(at_, text_.size()))) + " on");
  }

  bool accept(const std::string& token) {
    if (text_.compare(std::min(at_, text_.size()), token.size(), token) != 0) return false;
    at_ += token.size();
    return true;
  }
  void expect(const std::string& token) {
    if (!accept(token)) misunderstood();
  }
  std::string word() {
    const size_t begin = at_;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '_'))
      ++at_;
    if (at_ == begin) misunderstood();
    return text_.substr(begin, at_ - begin);
  }

  int64_t checked(bool overflow, int64_t value) const {
    if (overflow) fail("is more than 63 bits");
    return value;
  }
  int64_t add(int64_t a, int64_t b) const {
    int64_t result = 0;
    const bool overflow = __builtin_add_overflow(a, b, &result);
    return checked(overflow, result);
  }
  int64_t multiply(int64_t a, int64_t b) const {
    int64_t result = 0;
    const bool overflow = __builtin_mul_overflow(a, b, &result);
    return checked(overflow, result);
  }
  int64_t floor_divide(int64_t a, int64_t b) const {
    if (b == 0) fail("divides by zero");
    checked(a == std::numeric_limits<int64_t>::min() && b == -1, 0);
    return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
  }
  int64_t modulo(int64_t a, int64_t b) const { return add(a, multiply(-1, multiply(floor_divide(a, b), b))); }
  int64_t power(int64_t base, int64_t exponent) const {
    if (exponent < 0) fail("has a negative power");
    if (exponent > 62 && (base > 1 || base < -1)) checked(true, 0);
    int64_t result = 1;
    for (int64_t i = exponent > 62 ? exponent % 2 : exponent; i > 0; --i) result = multiply(result, base);
    return base == 0 && exponent > 0 ? 0 : result;
  }

  int64_t integer() {
    const bool negative = accept("-");
    int64_t value = 0;
    for (const char digit : word()) {
      if (std::isdigit(static_cast<unsigned char>(digit)) == 0)
        fail("has " + in_quotes(std::string(1, digit)) + " in a number");
      value = add(multiply(value, 10), digit - '0');
    }
    return negative ? -value : value;
  }

  int64_t symbol() {
    expect("'");
    const std::string name = word();
    expect("'");
    while (accept(", ")) {  // what is known of it: positive=True
      word();
      expect("=");
      word();
    }
    const auto found = values_.find(name);
    if (found != values_.end()) return found->second;
    fail(name[0] == 'u' ? "depends on the values of a tensor, which are known at run time only"
                        : "depends on " + in_quotes(name) + ", which no size of an input determines");
  }

  int64_t call(int depth) {
    if (depth > kDeepest) fail("is nested too deeply");
    const std::string name = word();
    expect("(");
    int64_t value = 0;
    if (name == "Integer") {
      value = integer();
    } else if (name == "Symbol") {
      value = symbol();
    } else {
      std::vector<int64_t> arguments;
      do {
        arguments.push_back(call(depth + 1));
      } while (accept(", "));
      value = apply(name, arguments);
    }
    expect(")");
    return value;
  }

  int64_t apply(const std::string& name, const std::vector<int64_t>& arguments) const {
    int64_t value = arguments[0];
    const size_t count = arguments.size();
    for (size_t i = 1; i < count; ++i) {
      const int64_t next = arguments[i];
      if (name == "Add") {
        value = add(value, next);
      } else if (name == "Mul") {
        value = multiply(value, next);
      } else if (name == "Max") {
        value = std::max(value, next);
      } else if (name == "Min") {
        value = std::min(value, next);
      } else if (name == "Pow" && count == 2) {
        value = power(value, next);
      } else if (name == "FloorDiv" && count == 2) {
        value = floor_divide(value, next);
      } else if (name == "CeilDiv" && count == 2) {
        value = multiply(-1, floor_divide(multiply(-1, value), next));
      } else if ((name == "Mod" || name == "PythonMod") && count == 2) {
        value = modulo(value, next);
      } else {
        fail("has the function " + in_quotes(name) + " of " + std::to_string(count) +
             " arguments, which is not known");
      }
    }
    if (count == 1) fail("has the function " + in_quotes(name) + " of 1 argument, which is not known");
    return value;
  }

  const std::string& text_;
  const std::map<std::string, int64_t>& values_;
  const std::string& where_;
  size_t at_ = 0;
};

}  // namespace

int64_t Pt2Symbols::evaluate(const std::string& expression, const std::string& where) const {
  return Parser(expression, values_, where).whole();
}

int64_t Pt2Symbols::evaluate(JsonReader sym_int) const {
  if (sym_int.has("as_int")) {
    return sym_int.integer("as_int", std::numeric_limits<int64_t>::min(),
                           std::numeric_limits<int64_t>::max());
  }
  JsonReader expression = sym_int.object("as_expr");
  return evaluate(expression.string("expr_str"), expression.where() + ": " + expression.place("expr_str"));
}

std::optional<std::string> Pt2Symbols::symbol(const std::string& expression) {
  const std::string begin = "Symbol('";
  if (!expression.starts_with(begin)) return std::nullopt;
  const size_t end = expression.find('\'', begin.size());
  if (end == std::string::npos) return std::nullopt;
  return expression.substr(begin.size(), end - begin.size());
}

}  // namespace pipewright
