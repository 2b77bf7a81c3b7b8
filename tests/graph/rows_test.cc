// Tables of named rows: a name finds its row, a slip is answered with the nearest, help is made of the rows.
#include "graph/rows.h"

#include <catch2/catch.hpp>
#include <set>

#include "graph/pipeline_rules.h"
#include "graph/strategies.h"
#include "graph/sync_rules.h"
#include "graph/transport_rules.h"
#include "graph/update_rules.h"
#include "tests/support/error_of.h"

using namespace pipewright;

namespace {

template <typename Row>
void check_table(const std::vector<Row>& rows) {
  std::set<std::string> names;
  for (const Row& row : rows) {
    INFO(row.name);
    CHECK(names.insert(row.name).second);
    CHECK(&row_named(rows, "thing", row.name) == &row);
    const std::string slip = std::string(row.name) + "x";
    if (find_row(rows, slip) != nullptr) continue;
    const std::string error = testing::error_of<InputError>([&] { row_named(rows, "thing", slip); });
    CHECK_THAT(error, Catch::StartsWith("thing '" + slip + "' is not known"));
    CHECK_THAT(error, Catch::Contains(row.name));
  }
  CHECK(names.size() == names_of(rows).size());
}

template <typename Row>
void check_help(const std::vector<Row>& rows) {
  const std::string help = help_of(rows);
  for (const Row& row : rows)
    CHECK_THAT(help, Catch::Contains(std::string(row.name) + " (" + row.summary + ")"));
}

}  // namespace

TEST_CASE("tables: every name finds its row, and no other, a slip says the nearest") {
  check_table(schedule_table());
  check_table(weight_rules());
  check_table(sync_rules());
  check_table(transport_rules());
  check_table(strategies());
  check_table(update_rules());
  check_table(learning_rate_policies());
  check_help(transport_rules());
  check_help(sync_rules());
}

TEST_CASE("strategies: what is written by hand is read, but not asked for") {
  CHECK_FALSE(strategy_facts("manual").searched);
  CHECK_THROWS_AS(searched_strategy("manual"), InputError);
  CHECK(searched_strategies().size() + 1 == strategies().size());
}

TEST_CASE("transports: one goes everywhere, and what needs GPUs says so") {
  CHECK(transport_facts("auto").uses_memory);
  CHECK(transport_facts("auto").uses_network);
  for (const TransportFacts& row : transport_rules()) {
    INFO(row.name);
    CHECK((row.uses_memory || row.uses_network));
    CHECK(row.needs_gpus() == (std::string(row.name) == "nccl"));
  }
}
