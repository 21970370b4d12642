// Tunes how this process's malloc serves two kinds of large tensors. Linux with glibc; the settings apply to the whole
// process and are made by the thread that loads and computes.
#pragma once

namespace tessera::models {

// Makes malloc keep and reuse freed memory from now on. Every layer allocates and frees activations of tens of MiB; by
// default each allocation would be mapped and its pages faulted in again, which costs more than the arithmetic of an
// elementwise operator.
void KeepFreedMemory();

// While an instance exists, large tensors get separate pages, which are returned to the system as soon as they are
// freed: loading drops the tensors that it converts or packs, and an unloaded component leaves no memory allocated. Its
// destructor restores the settings of KeepFreedMemory().
class WeightPages {
 public:
  WeightPages();
  ~WeightPages();
  WeightPages(const WeightPages&) = delete;
  WeightPages& operator=(const WeightPages&) = delete;
};

}  // namespace tessera::models
