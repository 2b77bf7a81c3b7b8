#include "graph/sync_rules.h"

#include "graph/limits.h"
#include "graph/rows.h"
#include "graph/spec.h"

namespace pipewright {

namespace {

// Whoever takes the next minibatch, or in turn.
bool are_shared(SpecOptions& options, const std::string& unless_given) {
  return options.choice("minibatches", unless_given, {"turns", "shared"}) == "shared";
}

}  // namespace

const std::vector<SyncFacts>& sync_rules() {
  static const std::vector<SyncFacts> rows = {
      {SyncKind::kAllReduce, "all-reduce", true, false, false,
       "gradients are summed over the replicas at every update"},
      {SyncKind::kPartialReduce, "partial-reduce", false, true, true,
       "every pipeline trains by itself and averages weights with those that are ready when it is"},
      {SyncKind::kAdpsgdLockstep, "adpsgd-lockstep", false, true, false,
       "every pipeline trains by itself and averages weights with another one, drawn for every update"},
      {SyncKind::kAdpsgd, "adpsgd", false, true, true,
       "every pipeline trains by itself and, at any time, averages weights with another one beside it"},
      {SyncKind::kHetPipe, "hetpipe", false, true, false,
       "every pipeline trains by itself and adds what a wave of its updates brought to weights of all"},
      {SyncKind::kNone, "none", false, false, false,
       "every pipeline trains by itself; all are averaged when the pipeline drains"},
  };
  return rows;
}

const SyncFacts& sync_facts(const std::string& sync) {
  return row_named(sync_rules(), "sync", parse_spec(sync, "sync").name);
}

bool shares_minibatches(const std::string& sync) {
  switch (sync_facts(sync).kind) {
    case SyncKind::kPartialReduce:
      return partial_reduce_rules(sync).shares_minibatches;
    case SyncKind::kAdpsgd:
    case SyncKind::kNone: {
      SpecOptions options(parse_spec(sync, "sync"));
      const bool shared = are_shared(options, sync_facts(sync).averages_weights ? "shared" : "turns");
      options.finish();
      return shared;
    }
    case SyncKind::kHetPipe:
      hetpipe_rules(sync);
      return false;
    case SyncKind::kAllReduce:
    case SyncKind::kAdpsgdLockstep:
      SpecOptions(parse_spec(sync, "sync")).finish();
      return false;
  }
  return false;
}

bool averages_whole_pipelines(const std::string& sync) {
  const SyncKind kind = sync_facts(sync).kind;
  if (kind == SyncKind::kPartialReduce) return partial_reduce_rules(sync).of_whole_pipelines;
  return kind != SyncKind::kAdpsgd;
}

void check_sync(const std::string& sync) { shares_minibatches(sync); }

PartialReduceRules partial_reduce_rules(const std::string& sync) {
  SpecOptions options(parse_spec(sync, "sync"));
  PartialReduceRules rules;
  rules.window_updates = options.integer("window", rules.window_updates, 1, kMostCount);
  rules.of_whole_pipelines = options.choice("scope", "stage", {"stage", "pipeline"}) == "pipeline";
  rules.fewest = options.integer("minimum", rules.fewest, 1, kMostRanks);
  rules.pairs_above = options.integer("pairs-above", rules.pairs_above, 2, kMostRanks);
  rules.wait = options.number("wait", rules.wait, 0, 100);
  rules.most_wait =
      options.number("most-wait", rules.wait > rules.most_wait ? rules.wait : rules.most_wait, 0, 100);
  rules.shares_minibatches = are_shared(options, "shared");
  options.finish();
  if (rules.most_wait < rules.wait)
    options.fail("most-wait", "less than wait, which is " + std::to_string(rules.wait));
  return rules;
}

HetPipeRules hetpipe_rules(const std::string& sync) {
  SpecOptions options(parse_spec(sync, "sync"));
  HetPipeRules rules;
  rules.distance = options.integer("distance", rules.distance, 0, kMostCount);
  rules.wave_updates = options.integer("wave", rules.wave_updates, 0, kMostCount);
  options.finish();
  return rules;
}

}  // namespace pipewright
