// ModuleImages reads for which cards a module has code. nvcc packs machine code and PTX of several architectures into
// one "fat binary", and the driver selects what fits the card. The format is undocumented; the fields used here were
// found by comparing the output of nvcc 13.0 for sm_90, sm_90a, sm_100f, sm_120a and sm_120f.
#pragma once

namespace tessera::fake_cuda {

// A fat binary as passed to __cudaRegisterFatBinary. Only its headers are read, on demand.
class ModuleImages final {
 public:
  explicit ModuleImages(const void* wrapper);

  // Returns whether the code runs on a card of that compute capability (90 for 9.0).
  bool Serve(int architecture) const;

 private:
  const char* data_ = nullptr;
};

}  // namespace tessera::fake_cuda
