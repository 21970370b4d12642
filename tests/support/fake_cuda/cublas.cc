// Fakes the matrix products of cuBLAS and cuBLASLt. Each product is logged with its library, dtype, rows, columns,
// length and batch. Only the functions that LibTorch's CUDA half calls for our operators are here; the others are
// stubs. The libraries' headers are not required.
#include <cuda_runtime_api.h>
#include <library_types.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "tests/support/fake_cuda/capture.h"
#include "tests/support/fake_cuda/machine.h"

namespace tessera::fake_cuda {
namespace {

using Status = int;  // cublasStatus_t
constexpr Status kSuccess = 0, kNotInitialized = 1, kExecutionFailed = 13;

struct Handle {
  cudaStream_t stream = nullptr;
};

// cublasLtMatrixLayoutAttribute_t, cublasLtMatmulDescAttributes_t and cublasLtEpilogue_t.
enum LayoutAttribute { kLayoutType = 0, kLayoutRows = 2, kLayoutColumns = 3, kLayoutBatch = 5 };
enum DescriptionAttribute { kEpilogue = 7 };

struct Layout {
  cudaDataType_t type = CUDA_R_32F;
  uint64_t rows = 0, columns = 0;
  int32_t batch = 1;
};

struct Description {
  uint32_t epilogue = 1;
};

// cublasLtMatmulHeuristicResult_t.
struct HeuristicResult {
  uint64_t algorithm[8];
  size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
};

struct Product {
  cudaDataType_t type = CUDA_R_32F;
  int64_t rows = 0, columns = 0, length = 0, batch = 1;
  uint32_t epilogue = 1;
};

const char* DtypeName(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_16BF:
      return "bf16";
    case CUDA_R_16F:
      return "fp16";
    case CUDA_R_32F:
      return "fp32";
    case CUDA_R_64F:
      return "fp64";
    case CUDA_R_8F_E4M3:
      return "e4m3";
    case CUDA_R_8I:
      return "int8";
    default:
      return "other";
  }
}

Work WorkOf(const Product& product) {
  constexpr double kWide = 50e3, kNarrow = 600e3;  // per nanosecond
  const bool wide = product.type == CUDA_R_32F || product.type == CUDA_R_64F;
  return Work::Flops(2.0 * static_cast<double>(product.rows) * static_cast<double>(product.columns) *
                         static_cast<double>(product.length) * static_cast<double>(product.batch),
                     wide ? kWide : kNarrow);
}

// Loads the code of a product if necessary. Each shape has separate code, because the kernel that a library chooses
// depends on the shape. Returns false if loading fails.
bool HaveCode(const char* library, const Product& product) {
  static std::mutex mutex;
  static auto* const codes = new std::map<std::string, LazyCode>();
  std::string name = std::string(library) + "_" + DtypeName(product.type);
  for (const int64_t number : {product.rows, product.columns, product.length, product.batch}) {
    name += "_" + std::to_string(number);
  }
  name += "_" + std::to_string(product.epilogue);
  const std::lock_guard lock(mutex);
  return Load((*codes)[name], name) == cudaSuccess;
}

Status Issue(const char* library, cudaStream_t stream, const Product& product) {
  Machine& machine = TheMachine();
  const bool works = machine.CountLaunch() && HaveCode(library, product);
  machine.log().Write("product", Record(library, stream, WorkOf(product)), library, DtypeName(product.type),
                      product.rows, product.columns, product.length, product.batch, product.epilogue);
  return works ? kSuccess : kExecutionFailed;
}

Status Issue(Handle* handle, const Product& product) { return Issue("cublas", handle->stream, product); }

}  // namespace
}  // namespace tessera::fake_cuda

using namespace tessera::fake_cuda;  // NOLINT(build/namespaces): what follows are cuBLAS's own functions

extern "C" {

Status cublasCreate_v2(Handle** handle) {
  if (CheckUnsafe(Unsafe::kAllocation, nullptr) != cudaSuccess) return kNotInitialized;  // it allocates device memory
  *handle = new Handle();
  return kSuccess;
}

Status cublasDestroy_v2(Handle* handle) {
  delete handle;
  return kSuccess;
}

Status cublasSetStream_v2(Handle* handle, cudaStream_t stream) {
  handle->stream = stream;
  return kSuccess;
}

Status cublasSetWorkspace_v2(Handle*, void*, size_t) { return kSuccess; }
Status cublasSetMathMode(Handle*, int) { return kSuccess; }
Status cublasSetPointerMode_v2(Handle*, int) { return kSuccess; }

Status cublasGetMathMode(Handle*, int* mode) {
  *mode = 0;
  return kSuccess;
}

Status cublasGetPointerMode_v2(Handle*, int* mode) {
  *mode = 0;
  return kSuccess;
}

Status cublasSgemm_v2(Handle* handle, int, int, int m, int n, int k, const float*, const float*, int, const float*, int,
                      const float*, float*, int) {
  return Issue(handle, {.type = CUDA_R_32F, .rows = m, .columns = n, .length = k});
}

Status cublasDgemm_v2(Handle* handle, int, int, int m, int n, int k, const double*, const double*, int, const double*,
                      int, const double*, double*, int) {
  return Issue(handle, {.type = CUDA_R_64F, .rows = m, .columns = n, .length = k});
}

Status cublasGemmEx(Handle* handle, int, int, int m, int n, int k, const void*, const void*, cudaDataType_t type, int,
                    const void*, cudaDataType_t, int, const void*, void*, cudaDataType_t, int, int, int) {
  return Issue(handle, {.type = type, .rows = m, .columns = n, .length = k});
}

Status cublasSgemmStridedBatched(Handle* handle, int, int, int m, int n, int k, const float*, const float*, int,
                                 long long, const float*, int, long long, const float*, float*, int, long long,
                                 int batch) {
  return Issue(handle, {.type = CUDA_R_32F, .rows = m, .columns = n, .length = k, .batch = batch});
}

Status cublasDgemmStridedBatched(Handle* handle, int, int, int m, int n, int k, const double*, const double*, int,
                                 long long, const double*, int, long long, const double*, double*, int, long long,
                                 int batch) {
  return Issue(handle, {.type = CUDA_R_64F, .rows = m, .columns = n, .length = k, .batch = batch});
}

Status cublasGemmStridedBatchedEx(Handle* handle, int, int, int m, int n, int k, const void*, const void*,
                                  cudaDataType_t type, int, long long, const void*, cudaDataType_t, int, long long,
                                  const void*, void*, cudaDataType_t, int, long long, int batch, int, int) {
  return Issue(handle, {.type = type, .rows = m, .columns = n, .length = k, .batch = batch});
}

Status cublasSgemv_v2(Handle* handle, int, int m, int n, const float*, const float*, int, const float*, int,
                      const float*, float*, int) {
  return Issue(handle, {.type = CUDA_R_32F, .rows = m, .columns = 1, .length = n});
}

Status cublasDgemv_v2(Handle* handle, int, int m, int n, const double*, const double*, int, const double*, int,
                      const double*, double*, int) {
  return Issue(handle, {.type = CUDA_R_64F, .rows = m, .columns = 1, .length = n});
}

size_t cublasLtGetVersion() { return 130100; }

Status cublasLtMatmulDescCreate(Description** description, int, cudaDataType_t) {
  *description = new Description();
  return kSuccess;
}

Status cublasLtMatmulDescDestroy(Description* description) {
  delete description;
  return kSuccess;
}

Status cublasLtMatmulDescSetAttribute(Description* description, int attribute, const void* value, size_t) {
  if (attribute == kEpilogue) std::memcpy(&description->epilogue, value, sizeof(description->epilogue));
  return kSuccess;
}

Status cublasLtMatrixLayoutCreate(Layout** layout, cudaDataType_t type, uint64_t rows, uint64_t columns, int64_t) {
  *layout = new Layout{.type = type, .rows = rows, .columns = columns};
  return kSuccess;
}

Status cublasLtMatrixLayoutDestroy(Layout* layout) {
  delete layout;
  return kSuccess;
}

Status cublasLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* value, size_t) {
  if (attribute == kLayoutBatch) std::memcpy(&layout->batch, value, sizeof(layout->batch));
  if (attribute == kLayoutRows) std::memcpy(&layout->rows, value, sizeof(layout->rows));
  if (attribute == kLayoutColumns) std::memcpy(&layout->columns, value, sizeof(layout->columns));
  if (attribute == kLayoutType) std::memcpy(&layout->type, value, sizeof(layout->type));
  return kSuccess;
}

Status cublasLtMatmulPreferenceCreate(void** preference) {
  *preference = new Description();
  return kSuccess;
}

Status cublasLtMatmulPreferenceDestroy(void* preference) {
  delete static_cast<Description*>(preference);
  return kSuccess;
}

Status cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, size_t) { return kSuccess; }

Status cublasLtMatmulAlgoGetHeuristic(Handle*, Description*, Layout*, Layout*, Layout*, Layout*, void*, int,
                                      HeuristicResult* results, int* count) {
  results[0] = {};
  *count = 1;
  return kSuccess;
}

Status cublasLtMatmul(Handle*, Description* description, const void*, const void*, Layout* a, const void*, Layout*,
                      const void*, const void*, Layout*, void*, Layout* d, const void*, void*, size_t,
                      cudaStream_t stream) {
  const uint64_t length = d->rows == 0 ? 0 : a->rows * a->columns / d->rows;
  return Issue("cublasLt", stream,
               {.type = a->type,
                .rows = static_cast<int64_t>(d->rows),
                .columns = static_cast<int64_t>(d->columns),
                .length = static_cast<int64_t>(length),
                .batch = d->batch,
                .epilogue = description->epilogue});
}

}  // extern "C"
