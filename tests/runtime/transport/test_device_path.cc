#include <catch2/catch.hpp>

#include "graph/error.h"
#include "runtime/transport/device_path.h"
#include "tests/support/error_of.h"

using namespace pipewright;
using pipewright::testing::error_of;

namespace {

RankDevice gpu(const std::string& identity, int64_t nccl = 22'809) { return {true, identity, "H100", nccl}; }

}  // namespace

TEST_CASE(
    "device path: NCCL between GPUs of their own, the host's memory where ranks share one or have none") {
  CHECK(choose_device_path("auto", {{}, {}}) == DevicePath::kNone);
  CHECK(choose_device_path("shm", {{}, {}}) == DevicePath::kNone);
  CHECK(choose_device_path("auto", {gpu("a"), gpu("b")}) == DevicePath::kNccl);
  CHECK(choose_device_path("nccl", {gpu("a"), gpu("b")}) == DevicePath::kNccl);
  CHECK(choose_device_path("gloo", {gpu("a"), gpu("b")}) == DevicePath::kStaged);
  CHECK(choose_device_path("shm", {gpu("a"), gpu("b")}) == DevicePath::kStaged);
  CHECK(choose_device_path("auto", {gpu("a"), gpu("a")}) == DevicePath::kStaged);
  CHECK(choose_device_path("auto", {gpu("a"), {}}) == DevicePath::kStaged);
  CHECK(choose_device_path("auto", {gpu("a", 23'007), gpu("a", 23'007)}) == DevicePath::kStaged);
  CHECK(choose_device_path("nccl", {gpu("a", 23'007), gpu("a", 23'003)}) == DevicePath::kNccl);
  CHECK(choose_device_path("auto", {gpu("a", 0), gpu("b", 0)}) == DevicePath::kStaged);
}

TEST_CASE("device path: what NCCL would refuse is refused before it starts, with the remedy") {
  CHECK(
      error_of<InputError>([] {
        choose_device_path("nccl", {gpu("a"), gpu("b"), gpu("a")});
      }) ==
      "transport 'nccl': ranks 0 and 2 share a GPU (H100), which NCCL 2.28.9 refuses (2.30.3 and later can)");
  CHECK(
      error_of<InputError>([] {
        choose_device_path("nccl", {gpu("a", 23'007), gpu("a")});
      }) ==
      "transport 'nccl': ranks 0 and 1 share a GPU (H100), which NCCL 2.28.9 refuses (2.30.3 and later can)");
  CHECK(error_of<InputError>([] {
          choose_device_path("nccl", {gpu("a"), {}});
        }) == "transport 'nccl': rank 1 has no GPU");
  CHECK(error_of<InputError>([] {
          choose_device_path("nccl", {{}, {}});
        }) == "transport 'nccl': no rank has a GPU");
}

TEST_CASE("device path: what a rank tells of its device is what the others read") {
  const RankDevice device = gpu("0a1b", 22'809);
  const RankDevice read = RankDevice::from_text(device.to_text());
  CHECK(read.is_gpu);
  CHECK(read.identity == "0a1b");
  CHECK(read.name == "H100");
  CHECK(read.nccl_version == 22'809);
  CHECK_THROWS_AS(RankDevice::from_text("cuda"), PeerError);
  CHECK_THROWS_AS(RankDevice::from_text("{}"), PeerError);
}
