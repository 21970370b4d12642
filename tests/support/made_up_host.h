// Simulates hosts with GPUs: a /sys tree in a test's folder, and a driver that describes it.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "control/host/gpu_driver.h"
#include "tests/support/test_folder.h"

namespace tessera {

class MadeUpHost {
 public:
  const std::string& root() const { return folder_.path(); }
  const TestFolder& folder() const { return folder_; }

  void AddNode(int number, const std::string& processors, int first_processor, int socket) const {
    folder_.Write(absl::StrCat("sys/devices/system/node/node", number, "/cpulist"), processors + "\n");
    folder_.Write(absl::StrCat("sys/devices/system/cpu/cpu", first_processor, "/topology/physical_package_id"),
                  absl::StrCat(socket, "\n"));
  }

  // `path` from the root complex to the device: "pci0000:3a/0000:3a:00.0/0000:3b:00.0".
  void AddPciDevice(const std::string& path, const std::string& numa_node) const {
    namespace fs = std::filesystem;
    folder_.Write(absl::StrCat("sys/devices/", path, "/numa_node"), numa_node + "\n");
    const fs::path links = fs::path(root()) / "sys/bus/pci/devices";
    fs::create_directories(links);
    fs::create_directory_symlink(fs::path("../../../devices") / path, links / fs::path(path).filename());
  }

  void AddInfiniband(const std::string& device, const std::string& state, const std::string& link_layer,
                     const std::string& numa_node) const {
    const std::string folder = "sys/class/infiniband/" + device;
    folder_.Write(folder + "/ports/1/state", state + "\n");
    folder_.Write(folder + "/ports/1/link_layer", link_layer + "\n");
    folder_.Write(folder + "/ports/1/rate", "400 Gb/sec (4X NDR)\n");
    folder_.Write(folder + "/device/numa_node", numa_node + "\n");
  }

 private:
  TestFolder folder_;
};

class MadeUpGpuDriver final : public control::GpuDriver {
 public:
  absl::StatusOr<std::vector<control::DriverGpu>> Gpus() override {
    if (!problem.empty()) return absl::UnavailableError(problem);
    return gpus;
  }
  absl::StatusOr<bool> HaveNvlink(const std::string& pci_address, const std::string& other) override {
    ++asked;
    if (!nvml_problem.empty()) return absl::UnavailableError(nvml_problem);
    const std::pair<std::string, std::string> both = std::minmax(pci_address, other);
    return all_nvlink || std::find(nvlinks.begin(), nvlinks.end(), both) != nvlinks.end();
  }

  std::vector<control::DriverGpu> gpus;
  bool all_nvlink = false;                                   // through switches
  std::vector<std::pair<std::string, std::string>> nvlinks;  // pairs of ascending addresses
  std::string problem, nvml_problem;
  int asked = 0;
};

// Makes eight GPUs on two sockets, two at each PCIe switch, all connected by NVSwitch, with an InfiniBand device at
// each PCIe switch.
inline void MakeNvlinkHost(const MadeUpHost& host, MadeUpGpuDriver& driver) {
  host.AddNode(0, "0-31,64-95", 0, 0);
  host.AddNode(1, "32-63,96-127", 32, 1);
  for (int i = 0; i < 8; ++i) {
    const int complex = 1 + (i / 2);
    const std::string port = absl::StrCat("pci0000:", complex, "0/0000:", complex, "0:01.0/0000:", complex, "1:00.0");
    const std::string address = absl::StrCat("0000:", complex, 3 + (i % 2), ":00.0");
    host.AddPciDevice(absl::StrCat(port, "/0000:", complex, "2:0", i % 2, ".0/", address), absl::StrCat(i / 4));
    driver.gpus.push_back({.pci_address = address, .uuid = absl::StrCat("GPU-00000000-0000-0000-0000-00000000000", i)});
  }
  for (int i = 0; i < 4; ++i)
    host.AddInfiniband(absl::StrCat("mlx5_", i), "4: ACTIVE", "InfiniBand", absl::StrCat(i / 2));
  driver.all_nvlink = true;
}

// Makes four GPUs without NVLink: the first two at one PCIe switch, the third on the same socket, the last on the other
// socket.
inline void MakePcieHost(const MadeUpHost& host, MadeUpGpuDriver& driver) {
  host.AddNode(0, "0-15", 0, 0);
  host.AddNode(1, "16-31", 16, 1);
  const std::pair<const char*, const char*> gpus[] = {
      {"pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.0", "0"},
      {"pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.0", "0"},
      {"pci0000:20/0000:20:01.0/0000:21:00.0", "0"},
      {"pci0000:80/0000:80:01.0/0000:81:00.0", "1"}};
  for (const auto& [path, node] : gpus) {
    host.AddPciDevice(path, node);
    driver.gpus.push_back({.pci_address = std::filesystem::path(path).filename()});
  }
}

}  // namespace tessera
