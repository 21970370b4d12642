// How this process's malloc serves the two kinds of large tensors. Linux with glibc; settings of the whole process,
// made by the thread that loads and computes.
#pragma once

namespace tessera::models {

// Activations of tens of MiB come and go at every layer. By default each would be mapped afresh, and its pages faulted
// in again, which costs more than the arithmetic of an elementwise operator. From now on what is freed is kept and
// reused.
void KeepFreedMemory();

// While it lives, large tensors get pages of their own that go back as soon as they are freed: loading drops what it
// converts or packs, and a component that is not kept leaves nothing behind. Afterwards as KeepFreedMemory() says.
class WeightPages {
 public:
  WeightPages();
  ~WeightPages();
  WeightPages(const WeightPages&) = delete;
  WeightPages& operator=(const WeightPages&) = delete;
};

}  // namespace tessera::models
