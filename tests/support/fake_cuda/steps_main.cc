// fake-cuda-steps PREFIX prints the cost of the steps of each process that ran with FAKE_CUDA_LOG=PREFIX.
#include <cstdio>

#include "tests/support/fake_cuda/fake_cuda_log.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: fake-cuda-steps PREFIX\n");
    return 2;
  }
  for (const tessera::FakeCudaLog& log : tessera::FakeCudaLog::ReadAll(argv[1])) {
    std::printf("%s", tessera::FakeCudaTable(log).c_str());
  }
  return 0;
}
