// The emulator of CUDA kernels as the devices of blockmgr.cuda: "device memory"
// is the host's.
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <semaphore>
#include <span>
#include <utility>

#include <nanobind/nanobind.h>

#include "python/core/cuda_devices.h"
#include "tests/kernels/cuda/emulated_runtime.h"

namespace nb = nanobind;

namespace blockmgr::python {
namespace {

constexpr int32_t kNumDevices = 2;

// Events on all devices since the last call of take_events().
struct Events {
  int64_t num_waits = 0;
  int64_t num_copies = 0;  // to and from the host
  int64_t num_allocations = 0;
  int64_t num_stuck = 0;  // downloads that nobody released
  void* last_stream = nullptr;
};

Events& TheEvents() {
  static Events events;
  return events;
}

// Orders for the next calls, on any device.
struct Orders {
  bool gather_fails = false;
  // The next download waits, as for a GPU that is busy.
  bool download_waits = false;
  std::binary_semaphore waiting{0};
  std::binary_semaphore released{0};
};

Orders& TheOrders() {
  static Orders orders;
  return orders;
}

class TensorRuntime final : public EmulatedRuntime {
 public:
  TensorRuntime() : EmulatedRuntime(1, int64_t{1} << 20) {}

  void UseStream(void* stream) override { TheEvents().last_stream = stream; }
  absl::StatusOr<char*> Allocate(int64_t bytes) override {
    ++TheEvents().num_allocations;
    return EmulatedRuntime::Allocate(bytes);
  }
  void Upload(char* to, std::span<const std::byte> host) override {
    ++TheEvents().num_copies;
    EmulatedRuntime::Upload(to, host);
  }
  void Download(std::span<std::byte> host, const char* from) override {
    ++TheEvents().num_copies;
    ++TheEvents().num_waits;
    if (std::exchange(TheOrders().download_waits, false)) {
      TheOrders().waiting.release();
      if (!TheOrders().released.try_acquire_for(std::chrono::seconds(20))) {
        ++TheEvents().num_stuck;
      }
    }
    EmulatedRuntime::Download(host, from);
  }
  // There is no kernel for a conversion from float.
  void Gather(const GatherRows& gather, RowConversion conversion) override {
    const bool fails = std::exchange(TheOrders().gather_fails, false);
    EmulatedRuntime::Gather(gather,
                            fails ? RowConversion::kFloatToHalf : conversion);
  }
  // The memory is that of tensors, which the emulator has not allocated.
  void Fill(char* to, uint8_t byte, int64_t bytes) override {
    std::memset(to, byte, static_cast<size_t>(bytes));
  }
};

absl::Status Probe() { return absl::OkStatus(); }

absl::StatusOr<std::unique_ptr<DeviceRuntime>> Create(int32_t device) {
  if (device >= kNumDevices) {
    return absl::UnavailableError("device: expected one of 2 emulated ones");
  }
  return std::make_unique<TensorRuntime>();
}

DeviceSource emulated = {.probe = Probe, .create = Create};

}  // namespace
}  // namespace blockmgr::python

NB_MODULE(_emulator, m) {
  namespace python = blockmgr::python;
  m.def("devices",
        [] { return nb::capsule(&python::emulated, "DeviceSource"); });
  m.def("take_events", [] {
    const python::Events events = python::TheEvents();
    python::TheEvents() = {};
    nb::dict result;
    result["waits"] = events.num_waits;
    result["copies"] = events.num_copies;
    result["allocations"] = events.num_allocations;
    result["stream"] = reinterpret_cast<uintptr_t>(events.last_stream);
    result["stuck"] = events.num_stuck;
    return result;
  });
  m.def("fail_gather", [] { python::TheOrders().gather_fails = true; });
  m.def("hold_download", [] { python::TheOrders().download_waits = true; });
  m.def("await_download", [] {
    const nb::gil_scoped_release release;
    python::TheOrders().waiting.acquire();
  });
  m.def("release_download", [] { python::TheOrders().released.release(); });
}
