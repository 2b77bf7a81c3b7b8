#include "graph/cache_rules.h"

#include "graph/rows.h"
#include "graph/spec.h"
#include "graph/units.h"

namespace pipewright {
namespace {

int64_t bytes(SpecOptions& options, const std::string& name, const char* unless_given) {
  return parse_bytes(options.string(name, unless_given),
                     "cache '" + options.spec().text() + "': option '" + name + "'");
}

}  // namespace

const std::vector<CacheFacts>& cache_kinds() {
  static const std::vector<CacheFacts> rows = {
      {CacheKind::kNone, "none", "frozen layers run for every minibatch"},
      {CacheKind::kMemory, "memory",
       "what they make of a sample is kept in memory that ranks of a host share"},
      {CacheKind::kDisk, "disk", "there, and in a file for what does not fit"},
  };
  return rows;
}

CacheRules cache_rules(const std::string& cache) {
  SpecOptions options(parse_spec(cache, "cache"));
  CacheRules rules;
  rules.kind = row_named(cache_kinds(), "cache", options.spec().name).kind;
  if (rules.kind != CacheKind::kNone) {
    rules.memory_bytes = bytes(options, "memory", "2GiB");
    rules.dtype = options.choice("dtype", rules.dtype, {"float32", "bfloat16"});
    rules.measures = options.choice("use", "measured", {"measured", "always"}) == "measured";
  }
  if (rules.kind == CacheKind::kDisk) {
    rules.disk_bytes = bytes(options, "disk", "20GiB");
    rules.root = options.string("root", "");
  }
  options.finish();
  if (rules.kind == CacheKind::kMemory && rules.memory_bytes == 0)
    options.fail("memory", "0 bytes keep nothing", "give --cache none, or a size such as memory=2GiB");
  if (rules.kind == CacheKind::kDisk && rules.disk_bytes == 0)
    options.fail("disk", "0 bytes keep nothing", "give --cache memory, or a size such as disk=20GiB");
  return rules;
}

}  // namespace pipewright
