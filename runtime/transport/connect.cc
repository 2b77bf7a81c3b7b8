#include "runtime/transport/connect.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cstdlib>

#include "graph/error.h"
#include "graph/transport_rules.h"
#include "models/device/cuda_plugin.h"
#include "runtime/transport/device_path.h"
#include "runtime/transport/gloo.h"
#include "runtime/transport/interruptible.h"
#include "runtime/transport/paired.h"
#include "runtime/transport/process_state.h"
#include "runtime/transport/shared_blocks.h"
#include "runtime/transport/shm.h"
#include "runtime/transport/staged.h"

namespace pipewright {
namespace {

constexpr int64_t kWarmUpTag = 90'000;

class RoutedTransport : public Transport {
 public:
  RoutedTransport(std::unique_ptr<Transport> first, std::unique_ptr<Transport> second,
                  std::vector<bool> uses_second)
      : first_(std::move(first)), second_(std::move(second)), uses_second_(std::move(uses_second)) {
    PW_CHECK_EQ(first_->rank(), second_->rank());
    PW_CHECK_EQ(uses_second_.size(), static_cast<size_t>(first_->world_size()));
  }

  int64_t rank() const override { return first_->rank(); }
  int64_t world_size() const override { return first_->world_size(); }
  std::unique_ptr<Request> send(at::Tensor tensor, int64_t peer, int64_t tag) override {
    return to(peer).send(std::move(tensor), peer, tag);
  }
  std::unique_ptr<Request> receive(at::Tensor tensor, int64_t peer, int64_t tag) override {
    return to(peer).receive(std::move(tensor), peer, tag);
  }
  std::unique_ptr<Request> give(at::Tensor tensor, int64_t peer, int64_t tag) override {
    return to(peer).give(std::move(tensor), peer, tag);
  }
  std::unique_ptr<Delivery> take(at::IntArrayRef shape, const at::TensorOptions& options, int64_t peer,
                                 int64_t tag) override {
    return to(peer).take(shape, options, peer, tag);
  }
  int64_t buffered_bytes(int64_t peer) const override { return to(peer).buffered_bytes(peer); }
  void abort(const std::string& why) override {
    first_->abort(why);
    second_->abort(why);
  }

 private:
  Transport& to(int64_t peer) const {
    return uses_second_.at(static_cast<size_t>(peer)) ? *second_ : *first_;
  }

  std::unique_ptr<Transport> first_;
  std::unique_ptr<Transport> second_;
  std::vector<bool> uses_second_;
};

class DeviceRoutedTransport : public Transport {
 public:
  DeviceRoutedTransport(std::shared_ptr<Transport> host, std::unique_ptr<Transport> device,
                        std::vector<bool> has_device, Packer packer)
      : host_(std::move(host)),
        device_(std::move(device)),
        has_device_(std::move(has_device)),
        packer_(packer) {
    PW_CHECK_EQ(host_->rank(), device_->rank());
    PW_CHECK_EQ(has_device_.size(), static_cast<size_t>(host_->world_size()));
  }

  int64_t rank() const override { return host_->rank(); }
  int64_t world_size() const override { return host_->world_size(); }
  std::unique_ptr<Request> send(at::Tensor tensor, int64_t peer, int64_t tag) override {
    return of(tensor.device()).send(std::move(tensor), peer, tag);
  }
  std::unique_ptr<Request> receive(at::Tensor tensor, int64_t peer, int64_t tag) override {
    return of(tensor.device()).receive(std::move(tensor), peer, tag);
  }
  std::unique_ptr<Request> give(at::Tensor tensor, int64_t peer, int64_t tag) override {
    return of(tensor.device()).give(std::move(tensor), peer, tag);
  }
  std::unique_ptr<Delivery> take(at::IntArrayRef shape, const at::TensorOptions& options, int64_t peer,
                                 int64_t tag) override {
    return of(options.device()).take(shape, options, peer, tag);
  }
  bool sum(const at::Tensor& flat, const std::vector<int64_t>& ranks, int64_t tag) override {
    return of(flat.device()).sum(flat, ranks, tag);
  }
  int64_t buffered_bytes(int64_t peer) const override { return host_->buffered_bytes(peer); }
  const Packer* packer(int64_t peer) const override {
    return has_device_.at(static_cast<size_t>(peer)) ? &packer_ : nullptr;
  }
  void abort(const std::string& why) override {
    host_->abort(why);
    device_->abort(why);
  }

 private:
  Transport& of(at::Device device) { return device.is_cpu() ? *host_ : *device_; }

  std::shared_ptr<Transport> host_;
  std::unique_ptr<Transport> device_;  // goes first: it may use the host's
  std::vector<bool> has_device_;       // by rank
  Packer packer_;
};

// What the ranks' devices are, each told by its rank.
std::vector<RankDevice> exchange_devices(Store& store, const std::string& name, int64_t rank,
                                         int64_t world_size, const ConnectSettings& settings) {
  RankDevice own;
  if (!settings.device.is_cpu()) {
    own.is_gpu = true;
    own.identity = std::to_string(rank);
    if (settings.cuda != nullptr) {
      own.identity = settings.cuda->device_identity(settings.device.index());
      own.name = settings.cuda->device_name(settings.device.index());
      own.nccl_version = settings.cuda->nccl_version();
      if (std::getenv(kShareGpuVariable) != nullptr) own.identity += "/" + std::to_string(rank);
    }
  }
  store.set(name + "/device/" + std::to_string(rank), own.to_text());
  std::vector<RankDevice> all;
  for (int64_t peer = 0; peer < world_size; ++peer) {
    all.push_back(RankDevice::from_text(
        store.get(name + "/device/" + std::to_string(peer), settings.timeout, settings.check)));
  }
  return all;
}

}  // namespace

std::unique_ptr<Transport> make_device_routed_transport(std::shared_ptr<Transport> host,
                                                        std::unique_ptr<Transport> device,
                                                        std::vector<bool> has_device, Packer packer) {
  return std::make_unique<DeviceRoutedTransport>(std::move(host), std::move(device), std::move(has_device),
                                                 packer);
}

std::unique_ptr<Transport> make_routed_transport(std::unique_ptr<Transport> first,
                                                 std::unique_ptr<Transport> second,
                                                 std::vector<bool> uses_second) {
  return std::make_unique<RoutedTransport>(std::move(first), std::move(second), std::move(uses_second));
}

namespace {

std::unique_ptr<Transport> connect_hosts(Store& store, const std::string& name, int64_t rank,
                                         int64_t world_size, const ConnectSettings& settings) {
  const TransportFacts& facts = transport_facts(settings.transport);
  std::unique_ptr<Transport> shm;
  std::vector<bool> reached(static_cast<size_t>(world_size), false);
  if (facts.uses_memory) {
    const ProcessName self = this_process();
    store.set(name + "/host/" + std::to_string(rank), self.identity);
    std::vector<int64_t> neighbours;
    for (int64_t peer = 0; peer < world_size; ++peer) {
      const bool same = store.get(name + "/host/" + std::to_string(peer), settings.timeout, settings.check) ==
                        self.identity;
      if (same) neighbours.push_back(peer);
      if (!same && !facts.uses_network) {
        throw PeerError("transport '" + settings.transport + "': rank " + std::to_string(peer) +
                            " is not on the host of rank " + std::to_string(rank),
                        "give --transport auto: memory within a host, Gloo between hosts");
      }
    }
    ShmSettings shm_settings;
    if (static_cast<int64_t>(neighbours.size()) > settings.cores) {
      shm_settings.spin = std::chrono::microseconds(0);
    }
    shm_settings.check = settings.check;
    shm = make_shm_transport(store, name + "/shm", rank, world_size, neighbours, settings.timeout,
                             shm_settings, facts.uses_network ? &reached : nullptr);
    if (!facts.uses_network) reached.assign(static_cast<size_t>(world_size), true);
  }
  reached[static_cast<size_t>(rank)] = true;
  // Whether Gloo is needed is a question to all ranks: its group connects all of them.
  const bool all_here = std::all_of(reached.begin(), reached.end(), [](bool r) { return r; });
  store.set(name + "/reached/" + std::to_string(rank), all_here ? "all" : "some");
  bool all = true;
  for (int64_t peer = 0; peer < world_size; ++peer) {
    all = all &&
          store.get(name + "/reached/" + std::to_string(peer), settings.timeout, settings.check) == "all";
  }
  std::unique_ptr<Transport> transport;
  if (all && shm) {
    transport = std::move(shm);
  } else {
    const auto own_store = std::make_shared<Store>(store.clone());
    // Gloo waits for each pair anew.
    const auto deadline = std::chrono::steady_clock::now() + settings.timeout;
    transport = interruptibly<std::unique_ptr<Transport>>(
        [=, address = settings.gloo_address, timeout = settings.timeout] {
          return make_gloo_transport(*own_store, name + "/gloo", rank, world_size, address, timeout);
        },
        [&] {
          if (settings.check) settings.check();
          if (std::chrono::steady_clock::now() > deadline)
            throw no_gloo(rank, world_size, "the time is over");
        });
    if (shm) transport = make_routed_transport(std::move(transport), std::move(shm), std::move(reached));
  }
  return transport;
}

// With which peers this rank shares its device and can open blocks of its memory, as they can this rank's:
// each pair tries it once.
std::vector<bool> peers_with_blocks(Store& store, const std::string& name, int64_t rank,
                                    const std::vector<RankDevice>& devices, BlockSharing& sharing,
                                    const ConnectSettings& settings) {
  const auto size = static_cast<int64_t>(devices.size());
  const auto key = [&](const std::string& kind, int64_t from, int64_t to) {
    return name + "/" + kind + "/" + std::to_string(from) + "/" + std::to_string(to);
  };
  const auto shares = [&](int64_t peer) {
    return peer != rank &&
           devices[static_cast<size_t>(peer)].identity == devices[static_cast<size_t>(rank)].identity;
  };
  const auto number = [&](int64_t value) {
    return at::full({1}, value, at::TensorOptions().dtype(at::kLong).device(settings.device));
  };
  std::vector<std::unique_ptr<SharedBlock>> tried;  // they live until every peer has said how it went
  for (int64_t peer = 0; peer < size; ++peer) {
    if (!shares(peer)) continue;
    std::string handle;
    try {
      tried.push_back(sharing.make(sizeof(int64_t)));
      tried.back()->fill(number(rank));
      handle = tried.back()->handle();
    } catch (const RunError&) {
      // without a handle there is nothing to open
    }
    store.set(key("block", rank, peer), handle);
  }
  for (int64_t peer = 0; peer < size; ++peer) {
    if (!shares(peer)) continue;
    const std::string handle = store.get(key("block", peer, rank), settings.timeout, settings.check);
    bool reads = false;
    try {
      const at::Tensor into = number(-1);
      if (!handle.empty()) {
        tried.push_back(sharing.open(handle));
        tried.back()->read_into(into);
        reads = into.item<int64_t>() == peer;
      }
    } catch (const RunError&) {
      // a system that keeps processes apart: the host's memory remains
    }
    store.set(key("reads", rank, peer), reads ? "yes" : "no");
  }
  std::vector<bool> both(devices.size(), false);
  for (int64_t peer = 0; peer < size; ++peer) {
    if (!shares(peer)) continue;
    const auto reads = [&](int64_t reader, int64_t maker) {
      return store.get(key("reads", reader, maker), settings.timeout, settings.check) == "yes";
    };
    // The peer's word is waited for whatever this rank's was: only then may its block go.
    const bool here = reads(rank, peer), there = reads(peer, rank);
    both[static_cast<size_t>(peer)] = here && there;
  }
  return both;
}

// Messages of the device's tensors where NCCL does not carry them: within the device where a peer shares it,
// otherwise through the host's memory.
std::unique_ptr<Transport> connect_devices(Store& store, const std::string& name, int64_t rank,
                                           const std::vector<RankDevice>& devices,
                                           const std::shared_ptr<Transport>& host,
                                           const ConnectSettings& settings) {
  auto staged = make_staged_transport(host, make_copy_engine(settings.device));
  const bool fastest = transport_facts(settings.transport).device_way == DeviceWay::kFastest;
  if (!fastest || settings.cuda == nullptr) return staged;
  auto sharing = settings.cuda->make_block_sharing(settings.device.index());
  auto with_blocks = peers_with_blocks(store, name + "/blocks", rank, devices, *sharing, settings);
  if (std::find(with_blocks.begin(), with_blocks.end(), true) == with_blocks.end()) return staged;
  return make_routed_transport(std::move(staged), make_block_transport(host, std::move(sharing)),
                               std::move(with_blocks));
}

PeerError no_nccl(int64_t rank, int64_t world_size) {
  return PeerError(
      "rank " + std::to_string(rank) + ": NCCL has not connected " + std::to_string(world_size) +
          " ranks, and the time is over",
      "NCCL_DEBUG=INFO in the environment makes NCCL say more; --transport gloo works without it");
}

// NCCL hears nothing while it waits for peers.
std::unique_ptr<Transport> connect_over_nccl(Store& store, const std::string& name, int64_t rank,
                                             int64_t world_size, const ConnectSettings& settings) {
  const auto own_store = std::make_shared<Store>(store.clone());
  const auto links = std::make_shared<const DeviceLinks>(settings.links);
  const auto deadline = std::chrono::steady_clock::now() + settings.timeout;
  return interruptibly<std::unique_ptr<Transport>>(
      [=, cuda = settings.cuda, device = settings.device.index()] {
        const NcclSettings nccl{name, rank, world_size, device, links.get()};
        return cuda->make_nccl_transport(own_store->implementation(), nccl);
      },
      [&] {
        if (settings.check) settings.check();
        if (std::chrono::steady_clock::now() > deadline) throw no_nccl(rank, world_size);
      });
}

}  // namespace

std::unique_ptr<Transport> connect_ranks(Store& store, const std::string& name, int64_t rank,
                                         int64_t world_size, const ConnectSettings& settings) {
  const std::vector<RankDevice> devices = exchange_devices(store, name, rank, world_size, settings);
  // Before anything is connected: ranks that cannot be are told why.
  const DevicePath path = choose_device_path(settings.transport, devices);
  auto own = connect_hosts(store, name, rank, world_size, settings);
  // A rank of the CPU among ranks of GPUs sends and receives as ever.
  if (path == DevicePath::kNone || settings.device.is_cpu()) return own;
  const std::shared_ptr<Transport> host = std::move(own);
  std::unique_ptr<Transport> device;
  if (path == DevicePath::kNccl) {
    device = make_paired_transport(host, connect_over_nccl(store, name + "/nccl", rank, world_size, settings),
                                   make_launch_lanes(settings.device), settings.links);
  } else {
    device = connect_devices(store, name, rank, devices, host, settings);
  }
  std::vector<bool> has_device;
  for (const RankDevice& its : devices) has_device.push_back(its.is_gpu);
  return make_device_routed_transport(host, std::move(device), std::move(has_device), Packer(settings.cuda));
}

void warm_links(Transport& transport) {
  std::vector<std::unique_ptr<Request>> requests;
  std::vector<at::Tensor> got(static_cast<size_t>(transport.world_size()));
  for (int64_t peer = 0; peer < transport.world_size(); ++peer) {
    if (peer == transport.rank()) continue;
    at::Tensor& into = got[static_cast<size_t>(peer)] = at::empty({1}, at::kLong);
    requests.push_back(transport.receive(into, peer, kWarmUpTag));
    requests.push_back(transport.send(at::full({1}, transport.rank(), at::kLong), peer, kWarmUpTag));
  }
  for (const auto& request : requests) request->wait();
  for (int64_t peer = 0; peer < transport.world_size(); ++peer) {
    if (peer != transport.rank()) PW_CHECK_EQ(got[static_cast<size_t>(peer)].item<int64_t>(), peer);
  }
}

}  // namespace pipewright
