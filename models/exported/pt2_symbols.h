// Sizes of exported programs that are not fixed in the file: expressions of symbols, as SymPy's srepr()
// prints them: "Mul(Integer(4), Symbol('s77', positive=True, integer=True))".
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "graph/json.h"

namespace pipewright {

class Pt2Symbols {
 public:
  void bind(const std::string& symbol, int64_t value) { values_[symbol] = value; }
  bool empty() const { return values_.empty(); }

  /// The value of an expression of Integer, Symbol, Add, Mul, Pow, FloorDiv, CeilDiv, Mod, PythonMod, Max and
  /// Min. InputError, beginning with `where`: other text, a symbol without a value, a division by zero, a
  /// number of more than 63 bits.
  int64_t evaluate(const std::string& expression, const std::string& where) const;

  /// The value of a SymInt: {"as_int": 3} or {"as_expr": {"expr_str": "Symbol('s77')"}}.
  int64_t evaluate(JsonReader sym_int) const;

  /// The name of the symbol that the expression is; nothing if it is something else.
  static std::optional<std::string> symbol(const std::string& expression);

 private:
  std::map<std::string, int64_t> values_;
};

}  // namespace pipewright
