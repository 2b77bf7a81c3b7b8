#include "runtime/messages/rank_message.h"

#include <cmath>
#include <type_traits>

#include "runtime/messages/message_codec.h"

namespace pipewright {
namespace {

Json write_loss(const MinibatchLoss& loss) {
  Json json;
  json["minibatch"] = loss.minibatch;
  json["loss"] = finite_or_null(loss.loss);
  json["elapsed_seconds"] = loss.elapsed_seconds;
  if (loss.part.count > 1) json["part"] = {loss.part.number, loss.part.count};
  if (loss.update.learning_rate) json["learning_rate"] = *loss.update.learning_rate;
  if (loss.update.gradient_norm) json["gradient_norm"] = finite_or_null(*loss.update.gradient_norm);
  return json;
}

MinibatchLoss read_loss(const Json& json) {
  MinibatchLoss loss{json.at("minibatch"), number_or_nan(json.at("loss")), json.at("elapsed_seconds")};
  if (json.contains("part")) loss.part = {json["part"].at(0), json["part"].at(1)};
  if (json.contains("learning_rate")) loss.update.learning_rate = json["learning_rate"].get<double>();
  if (json.contains("gradient_norm")) loss.update.gradient_norm = number_or_nan(json["gradient_norm"]);
  return loss;
}

Json write_begins(const EvaluationBegins& begins) { return {begins.epoch, begins.minibatches}; }
EvaluationBegins read_begins(const Json& json) { return {json.at(0), json.at(1)}; }

Json write_evaluation(const EvaluationPart& part) {
  return {part.epoch, part.minibatches, part.evaluated.to_json()};
}
EvaluationPart read_evaluation(const Json& json) {
  return {json.at(0), json.at(1), EvaluatedMinibatch::from_json(json.at(2))};
}

// The summary document is the one home of a rank's keys.
Json write_rank(const RankSummary& rank) {
  Summary holder;
  holder.status = "done";
  holder.ranks.push_back(rank);
  return holder.to_json();
}
RankSummary read_rank(const Json& json) {
  JsonReader reader(json, "message of a rank");
  return std::move(Summary::from_json(reader).ranks.at(0));
}

Json write_speed(const SpeedChange& change) {
  return {change.minibatch, change.found, change.before_seconds, change.after_seconds, change.slowdown};
}
SpeedChange read_speed(const Json& json) {
  return {json.at(0), json.at(1), json.at(2), json.at(3), json.at(4)};
}

Json write_spread(const DrainSpread& spread) { return {spread.minibatch, finite_or_null(spread.spread)}; }
DrainSpread read_spread(const Json& json) { return {json.at(0), number_or_nan(json.at(1))}; }

template <typename T>
Json write_summary(const T& summary) {
  return summary.to_json();
}
template <typename T>
T read_summary(const Json& json) {
  JsonReader reader(json, "message of a rank");
  return T::from_json(reader);
}

Json write_trace(const TraceDocument& trace) { return {trace.text, trace.zero_unix_microseconds}; }
TraceDocument read_trace(const Json& json) {
  return {json.at(0).get<std::string>(), json.at(1).get<int64_t>()};
}

Json write_checkpoint(const CheckpointPart& part) {
  Json stages = Json::array();
  for (const auto& [number, stage] : part.stages) stages.push_back({number, stage.to_json()});
  return {part.next_minibatch, std::move(stages), part.kept, part.lost};
}
CheckpointPart read_checkpoint(const Json& json) {
  CheckpointPart part{json.at(0), {}, json.at(2), json.at(3)};
  for (const Json& stage : json.at(1)) {
    JsonReader reader(stage.at(1), "message of a rank");
    part.stages[stage.at(0).get<int64_t>()] = CheckpointStage::from_json(reader);
  }
  return part;
}

// Of what says all by its kind.
template <typename T>
Json write_nothing(const T&) {
  return nullptr;
}
template <typename T>
T read_nothing(const Json&) {
  return {};
}

constexpr double kMicro = 1e-6;
int64_t microseconds(double seconds) { return std::llround(seconds / kMicro); }

// Times in microseconds: there are many.
Json write_log(const MessageLog& log) {
  Json ends = Json::array();
  for (const MessageEnd& end : log.ends)
    ends.push_back({static_cast<int>(end.is_gradient), static_cast<int>(end.is_sender), end.sender_stage,
                    end.minibatch, microseconds(end.began_seconds),
                    microseconds(end.ended_seconds - end.began_seconds)});
  return {log.generation, log.clock, std::move(ends)};
}
MessageLog read_log(const Json& json) {
  MessageLog log{json.at(0), json.at(1), {}};
  for (const Json& end : json.at(2)) {
    const double began = static_cast<double>(end.at(4).get<int64_t>()) * kMicro;
    const double lasted = static_cast<double>(end.at(5).get<int64_t>()) * kMicro;
    log.ends.push_back({end.at(0).get<int>() != 0, end.at(1).get<int>() != 0, end.at(2).get<int64_t>(),
                        end.at(3).get<int64_t>(), began, began + lasted});
  }
  return log;
}

Json write_core(const CoreSample& sample) {
  Json features = Json::array();
  for (const double value : sample.features) features.push_back(finite_or_null(value));
  return features;
}
CoreSample read_core(const Json& json) {
  CoreSample sample;
  for (const Json& value : json) sample.features.push_back(number_or_nan(value));
  return sample;
}

Json write_status(const RankStatus& status) {
  return {status.operation, status.seconds, status.minibatch, status.waited_seconds,
          status.peak_memory_bytes};
}
RankStatus read_status(const Json& json) {
  return {json.at(0), json.at(1), json.at(2), json.at(3), json.at(4)};
}

Json write_link(const ProbedLink& link) {
  return {link.from,
          link.to,
          link.latency_seconds,
          link.bandwidth_bytes_per_second,
          link.latency_spread,
          link.bandwidth_spread};
}
ProbedLink read_link(const Json& json) {
  return {json.at(0), json.at(1), json.at(2), json.at(3), json.at(4), json.at(5)};
}

Json write_time(const MessageTime& time) { return {time.bytes, time.seconds, time.spread}; }
MessageTime read_time(const Json& json) { return {json.at(0), json.at(1), json.at(2)}; }

Json write_pair(const ProbedPair& pair) {
  Json messages = Json::array(), core_times = Json::array();
  for (const MessageTime& time : pair.messages) messages.push_back(write_time(time));
  for (const CoreTime& time : pair.core_times)
    core_times.push_back({time.bytes, time.seconds, time.error_seconds});
  return {pair.from,
          pair.to,
          pair.buffered_bytes,
          std::move(messages),
          pair.left_out_bytes,
          write_time(pair.both_ways),
          std::move(core_times)};
}
ProbedPair read_pair(const Json& json) {
  ProbedPair pair{json.at(0), json.at(1), json.at(2), {}, json.at(4), read_time(json.at(5)), {}};
  for (const Json& time : json.at(3)) pair.messages.push_back(read_time(time));
  for (const Json& time : json.at(6)) pair.core_times.push_back({time.at(0), time.at(1), time.at(2)});
  return pair;
}

Json write_crowd(const CrowdSample& sample) {
  return {sample.crowd,        sample.round,  sample.together, sample.rank, sample.received_bytes_per_second,
          sample.core_seconds, sample.seconds};
}
CrowdSample read_crowd(const Json& json) {
  return {json.at(0), json.at(1), json.at(2), json.at(3), json.at(4), json.at(5), json.at(6)};
}

Json write_exchange(const ProbedExchange& sum) { return {sum.ranks, sum.bytes, sum.seconds, sum.spread}; }
ProbedExchange read_exchange(const Json& json) {
  return {json.at(0).get<std::vector<int64_t>>(), json.at(1), json.at(2), json.at(3)};
}

Json write_signal(const SignalHeard& heard) { return heard.signal; }
SignalHeard read_signal(const Json& json) { return {json.get<int>()}; }

Json write_begun(const BegunUpTo& begun) { return {begun.round, begun.minibatch}; }
BegunUpTo read_begun(const Json& json) { return {json.at(0), json.at(1)}; }

template <typename T>
Json write_round(const T& said) {
  return said.round;
}
template <typename T>
T read_round(const Json& json) {
  return {json.get<int64_t>()};
}

Json write_norms(const GradientNorms& told) {
  Json norms = Json::array();
  for (const double norm : told.norms) norms.push_back(finite_or_null(norm));
  return {told.minibatch, told.stage, std::move(norms)};
}
GradientNorms read_norms(const Json& json) {
  GradientNorms told{json.at(0), json.at(1), {}};
  for (const Json& norm : json.at(2)) told.norms.push_back(number_or_nan(norm));
  return told;
}

const std::tuple kMessageKinds = {
    MessageKind<MinibatchLoss>{"minibatch", write_loss, read_loss},
    MessageKind<EvaluationBegins>{"evaluation begins", write_begins, read_begins},
    MessageKind<EvaluationPart>{"evaluation", write_evaluation, read_evaluation},
    MessageKind<RankSummary>{"rank", write_rank, read_rank},
    MessageKind<SpeedChange>{"speed", write_speed, read_speed},
    MessageKind<DrainSpread>{"spread", write_spread, read_spread},
    MessageKind<EpochSummary>{"epoch", write_summary, read_summary},
    MessageKind<TraceDocument>{"trace", write_trace, read_trace},
    MessageKind<GenerationSummary>{"generation", write_summary, read_summary},
    MessageKind<CheckpointPart>{"checkpoint", write_checkpoint, read_checkpoint},
    MessageKind<WeightsSaved>{"saved", write_nothing, read_nothing},
    MessageKind<MessageLog>{"messages", write_log, read_log},
    MessageKind<CoreSample>{"core", write_core, read_core},
    MessageKind<RankStatus>{"status", write_status, read_status},
    MessageKind<ProbedLink>{"probed link", write_link, read_link},
    MessageKind<ProbedPair>{"probed pair", write_pair, read_pair},
    MessageKind<CrowdSample>{"probed crowd", write_crowd, read_crowd},
    MessageKind<ProbedExchange>{"probed sum", write_exchange, read_exchange},
    MessageKind<PrefixImpure>{"prefix impure", write_nothing, read_nothing},
    MessageKind<SignalHeard>{"signal", write_signal, read_signal},
    MessageKind<BegunUpTo>{"begun", write_begun, read_begun},
    MessageKind<StopKnown>{"stop known", write_round, read_round},
    MessageKind<ChangeMade>{"change made", write_round, read_round},
    MessageKind<GradientNorms>{"norms", write_norms, read_norms},
};

}  // namespace

std::string text_of(const RankMessage& message) { return encoded(message, kMessageKinds); }

RankMessage rank_message_of(const std::string& text) { return decoded<RankMessage>(text, kMessageKinds); }

std::optional<AgreementMessage> agreement_in(const RankMessage& message) {
  return std::visit(
      []<typename T>(const T& told) -> std::optional<AgreementMessage> {
        if constexpr (std::is_constructible_v<AgreementMessage, const T&>) return AgreementMessage(told);
        return std::nullopt;
      },
      message);
}

RankMessage message_of(const AgreementMessage& agreement) {
  return std::visit([](const auto& said) { return RankMessage(said); }, agreement);
}

}  // namespace pipewright
