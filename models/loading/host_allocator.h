// How this process's tensors in main memory are allocated: by malloc, on boundaries of 64 bytes.
//
// LibTorch's own allocator calls posix_memalign. Before version 2.38 that of glibc cannot take a free chunk of just the
// size that is asked for (sourceware bug 14581), so tensors that come and go at every layer take almost twice the
// memory that is ever in use at once.
#pragma once

namespace tessera::models {

// For all tensors in main memory that are made from now on.
void UseHostAllocator();

}  // namespace tessera::models
