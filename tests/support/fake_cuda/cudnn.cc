// Fakes cuDNN's backend, in which LibTorch describes an attention or a convolution as a graph of descriptors. The fake
// keeps the graph, offers one plan for every graph, and logs what a plan's graph computes when the plan is executed.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/fake_cuda/capture.h"
#include "tests/support/fake_cuda/machine.h"

namespace tessera::fake_cuda {
namespace {

using Status = int;  // cudnnStatus_t
constexpr Status kSuccess = 0, kNotInitialized = 1001, kExecutionFailed = 5000;

// The values of cudnnBackendAttributeType_t and cudnnBackendAttributeName_t that are read here.
enum AttributeType { kInt64 = 3, kNumericalNote = 11, kDescriptor = 15, kBehaviorNote = 19 };
enum AttributeName {
  kHeuristicGraph = 201,
  kHeuristicResults = 202,
  kTensorDataType = 901,
  kTensorDimensions = 902,
  kConvolutionWeights = 703,
  kConvolutionInput = 704,
  kProductA = 1520,
  kProductB = 1521,
  kAttentionQueries = 2800,
  kAttentionKeys = 2801,
};

struct Handle {
  cudaStream_t stream = nullptr;
};

// The attributes set in a descriptor. Descriptors that refer to it keep it alive.
struct Node {
  std::map<int, std::string> values;
  std::map<int, std::vector<std::shared_ptr<Node>>> children;
  std::string summary;  // of the graph below it; empty until requested
};

struct Descriptor {
  std::shared_ptr<Node> node = std::make_shared<Node>();
};

std::string DtypeName(const Node& tensor) {
  int32_t type = 0;
  const auto it = tensor.values.find(kTensorDataType);
  if (it == tensor.values.end() || it->second.size() < sizeof(type)) return "unknown";
  std::memcpy(&type, it->second.data(), sizeof(type));
  switch (type) {
    case 0:
      return "fp32";
    case 1:
      return "fp64";
    case 2:
      return "fp16";
    case 9:
      return "bf16";
    default:
      return "other";
  }
}

std::string Dimensions(const Node& tensor) {
  const auto it = tensor.values.find(kTensorDimensions);
  if (it == tensor.values.end()) return "?";
  std::string text;
  for (size_t at = 0; at + sizeof(int64_t) <= it->second.size(); at += sizeof(int64_t)) {
    int64_t size = 0;
    std::memcpy(&size, it->second.data() + at, sizeof(size));
    text += (text.empty() ? "" : "x") + std::to_string(size);
  }
  return text;
}

// Returns "attention bf16 1x24x4608x128 1x24x128x4608" or "convolution fp32 ..."; "" for any other node.
std::string Describe(const Node& node) {
  struct Kind {
    const char* name;
    int first, second;
  };
  for (const Kind& kind :
       {Kind{"attention", kAttentionQueries, kAttentionKeys}, Kind{"attention", kProductA, kProductB},
        Kind{"convolution", kConvolutionInput, kConvolutionWeights}}) {
    const auto first = node.children.find(kind.first), second = node.children.find(kind.second);
    if (first == node.children.end() || second == node.children.end()) continue;
    const Node& tensor = *first->second.front();
    return std::string(kind.name) + " " + DtypeName(tensor) + " " + Dimensions(tensor) + " " +
           Dimensions(*second->second.front());
  }
  return "";
}

// Returns the first operation in the graph that Describe recognizes.
std::string Summarize(const Node& node, std::set<const Node*>& seen) {
  if (!seen.insert(&node).second) return "";
  if (std::string own = Describe(node); !own.empty()) return own;
  for (const auto& [name, children] : node.children) {
    for (const std::shared_ptr<Node>& child : children) {
      if (std::string found = Summarize(*child, seen); !found.empty()) return found;
    }
  }
  return "";
}

// Derives the work from the shapes: the products of each query with all keys, or of each pixel with all weights.
Work WorkOf(const std::string& summary) {
  constexpr double kFlops = 500e3;  // per nanosecond
  std::istringstream words(summary);
  std::string kind, dtype, first, second;
  words >> kind >> dtype >> first >> second;
  const auto sizes = [](const std::string& dimensions) {
    std::vector<double> numbers;
    std::istringstream text(dimensions);
    for (std::string number; std::getline(text, number, 'x');) numbers.push_back(std::atof(number.c_str()));
    numbers.resize(std::max<size_t>(numbers.size(), 4), 1.0);
    return numbers;
  };
  const std::vector<double> a = sizes(first), b = sizes(second);
  if (kind == "attention") return Work::Flops(4 * a[0] * a[1] * a[2] * a[3] * std::max(b[2], b[3]), kFlops);
  return Work::Flops(2 * a[0] * a[2] * a[3] * b[0] * b[1] * b[2] * b[3], kFlops);
}

// Loads the code of a plan if necessary. Its kernels are loaded, or compiled, for the shapes of its graph. Returns
// false if loading fails.
bool HaveCode(const std::string& summary) {
  static std::mutex mutex;
  static auto* const codes = new std::map<std::string, LazyCode>();
  std::string name = "cudnn " + summary;
  std::replace(name.begin(), name.end(), ' ', '_');
  const std::lock_guard lock(mutex);
  return Load((*codes)[name], name) == cudaSuccess;
}

size_t BytesOf(int type) { return type == kInt64 || type == 0 || type == 5 || type == 6 ? 8 : type == 2 ? 1 : 4; }

}  // namespace
}  // namespace tessera::fake_cuda

using namespace tessera::fake_cuda;  // NOLINT(build/namespaces): what follows are cuDNN's own functions

extern "C" {

Status cudnnCreate(Handle** handle) {
  if (CheckUnsafe(Unsafe::kAllocation, nullptr) != cudaSuccess) return kNotInitialized;  // it allocates device memory
  *handle = new Handle();
  return kSuccess;
}

Status cudnnSetStream(Handle* handle, cudaStream_t stream) {
  handle->stream = stream;
  return kSuccess;
}

Status cudnnGetStream(Handle* handle, cudaStream_t* stream) {
  *stream = handle->stream;
  return kSuccess;
}

size_t cudnnGetVersion() { return TheMachine().options().cudnn; }
size_t cudnnGetCudartVersion() { return CUDART_VERSION; }
const char* cudnnGetErrorString(Status) { return "an error of the fake cuDNN"; }
void cudnnGetLastErrorString(char* text, size_t size) {
  if (size > 0) text[0] = '\0';
}

Status cudnnBackendCreateDescriptor(int, Descriptor** descriptor) {
  *descriptor = new Descriptor();
  return kSuccess;
}

Status cudnnBackendDestroyDescriptor(Descriptor* descriptor) {
  delete descriptor;
  return kSuccess;
}

Status cudnnBackendFinalize(Descriptor*) { return kSuccess; }

Status cudnnBackendSetAttribute(Descriptor* descriptor, int name, int type, int64_t count, const void* values) {
  Node& node = *descriptor->node;
  if (type != kDescriptor) {
    node.values[name] = std::string(static_cast<const char*>(values), static_cast<size_t>(count) * BytesOf(type));
    return kSuccess;
  }
  auto* const* set = static_cast<Descriptor* const*>(values);
  std::vector<std::shared_ptr<Node>>& children = node.children[name];
  children.clear();
  for (int64_t i = 0; i < count; ++i) children.push_back(set[i]->node);
  return kSuccess;
}

// Every query has the same answer: one plan, without workspace and without notes.
Status cudnnBackendGetAttribute(Descriptor* descriptor, int name, int type, int64_t requested, int64_t* count,
                                void* values) {
  const bool none = type == kNumericalNote || type == kBehaviorNote;
  if (count != nullptr) *count = none ? 0 : 1;
  if (values == nullptr || none || requested < 1) return kSuccess;
  if (type != kDescriptor) {
    std::memset(values, 0, BytesOf(type));
  } else if (name == kHeuristicResults) {
    (*static_cast<Descriptor**>(values))->node->children[kHeuristicGraph] = {descriptor->node};
  }
  return kSuccess;
}

Status cudnnBackendExecute(Handle* handle, Descriptor* plan, Descriptor*) {
  std::string& summary = plan->node->summary;
  if (summary.empty()) {
    std::set<const Node*> seen;
    summary = Summarize(*plan->node, seen);
    if (summary.empty()) summary = "convolution unknown ? ?";
  }
  const size_t space = summary.find(' ');
  const bool works = TheMachine().CountLaunch() && HaveCode(summary);
  const std::string_view text = summary;
  TheMachine().log().Write(text.substr(0, space), Record("cudnnBackendExecute", handle->stream, WorkOf(summary)),
                           "cudnn", text.substr(space + 1));
  return works ? kSuccess : kExecutionFailed;
}

}  // extern "C"
