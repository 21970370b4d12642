// For which cards a module has code: nvcc packs machine code and PTX of several architectures into one "fat binary",
// and the driver takes what fits the card. The format is not documented; the fields used here were found by comparing
// what nvcc 13.0 writes for sm_90, sm_90a, sm_100f, sm_120a and sm_120f.
#pragma once

namespace tessera::fake_cuda {

// A fat binary as __cudaRegisterFatBinary is given it. Reads only the headers, and those only when it is asked.
class ModuleImages final {
 public:
  explicit ModuleImages(const void* wrapper);

  // Whether a card of that compute capability, 90 for 9.0, runs its code.
  bool Serve(int architecture) const;

 private:
  const char* data_ = nullptr;
};

}  // namespace tessera::fake_cuda
