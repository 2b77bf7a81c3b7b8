#include "runtime/messages/order.h"

#include "runtime/messages/message_codec.h"

namespace pipewright {
namespace {

Json write_no_more(const BeginNoMore& order) { return {order.round, order.signal}; }
BeginNoMore read_no_more(const Json& json) { return {json.at(0), json.at(1)}; }

Json write_before(const StopBefore& order) { return {order.round, order.minibatch, order.change}; }
StopBefore read_before(const Json& json) { return {json.at(0), json.at(1), json.at(2)}; }

Json write_again(const BeginAgain& order) { return order.round; }
BeginAgain read_again(const Json& json) { return {json.get<int64_t>()}; }

Json write_decided(const DrainDecided& order) { return {order.minibatch, order.change}; }
DrainDecided read_decided(const Json& json) { return {json.at(0), json.at(1)}; }

Json write_ended(const GenerationEnded& order) {
  return {order.generation, order.stopped, order.next_minibatch};
}
GenerationEnded read_ended(const Json& json) { return {json.at(0), json.at(1), json.at(2)}; }

const std::tuple kOrderKinds = {
    MessageKind<BeginNoMore>{"begin no more", write_no_more, read_no_more},
    MessageKind<StopBefore>{"stop before", write_before, read_before},
    MessageKind<BeginAgain>{"begin again", write_again, read_again},
    MessageKind<DrainDecided>{"drain decided", write_decided, read_decided},
    MessageKind<GenerationEnded>{"generation ended", write_ended, read_ended},
};

}  // namespace

std::string text_of(const Order& order) { return encoded(order, kOrderKinds); }

Order order_of(const std::string& text) { return decoded<Order>(text, kOrderKinds); }

}  // namespace pipewright
