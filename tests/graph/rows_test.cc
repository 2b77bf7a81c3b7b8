// Tables of named rows: a name finds its row, a slip is answered with the nearest, help is made of the rows.
#include "graph/rows.h"

#include <catch2/catch.hpp>
#include <set>

#include "graph/cache_rules.h"
#include "graph/learning_rate.h"
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
  check_table(cache_kinds());
  check_table(strategies());
  check_table(update_rules());
  check_table(learning_rate_policies());
  check_help(transport_rules());
  check_help(sync_rules());
  check_help(cache_kinds());
}

TEST_CASE("strategies: what is written by hand, or for inference, is read, but not asked for") {
  for (const char* name : {"inference", "manual"}) {  // the first has an option of its own
    CHECK_FALSE(strategy_facts(name).searched);
    CHECK_THROWS_AS(searched_strategy(name), InputError);
  }
  CHECK(searched_strategies().size() + 2 == strategies().size());
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

TEST_CASE("cache: sizes have units, what a kind has not is refused, and so is a budget of nothing") {
  CHECK(cache_rules("none").kind == CacheKind::kNone);
  const CacheRules memory = cache_rules("memory:memory=64MiB,dtype=bfloat16");
  CHECK(memory.memory_bytes == 64 << 20);
  CHECK(memory.disk_bytes == 0);
  CHECK(memory.dtype == "bfloat16");
  const CacheRules disk = cache_rules("disk:memory=0B,root=/tmp/kept");
  CHECK(disk.memory_bytes == 0);
  CHECK(disk.disk_bytes == int64_t{20} << 30);
  CHECK(disk.root == "/tmp/kept");
  const auto error = [](const std::string& spec) {
    return testing::error_of<InputError>([&] { cache_rules(spec); });
  };
  CHECK_THAT(error("memoy"), Catch::Contains("did you mean 'memory'"));
  CHECK_THAT(error("memory:memory=2"), Catch::Contains("2GiB"));
  CHECK_THAT(error("memory:disk=2GiB"), Catch::Contains("disk"));
  CHECK_THAT(error("memory:memory=0B"), Catch::Contains("keep nothing"));
  CHECK_THAT(error("disk:disk=0B"), Catch::Contains("keep nothing"));
  CHECK_THAT(error("memory:dtype=float16"), Catch::Contains("bfloat16"));
}
