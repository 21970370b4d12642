// Writes models whose transformer is a single GGUF file of full size and depth, with the other components beside it:
// golden ones, as in full_size_models.h, or those of FLUX.1-dev at full size with T5 in GGUF.
#pragma once

#include <filesystem>

#include "tests/cuda/full_size_models.h"
#include "tests/cuda/newer_full_size_models.h"
#include "tests/support/sparse_gguf.h"
#include "tests/support/test_folder.h"

namespace tessera {

inline void WriteWholeFluxGguf(const TestFolder& folder) {
  WriteGgufModel(folder, "flux_dev", "golden/pipelines/flux_dev", FluxGguf(4096, 768));
  WriteFullSizeParts(folder);
  std::filesystem::remove_all(folder / "flux_dev/text_encoder_2");
  T5Gguf().Write(folder, "flux_dev/t5-v1_1-xxl-encoder-Q8_0.gguf");
}

inline void WriteFlux2DevGguf(const TestFolder& folder) {
  WriteGgufModel(folder, "flux2_dev", "golden-edit/pipelines/flux2_dev", Flux2DevGguf(kGoldenDevStates));
}

inline void WriteQwenImageGguf(const TestFolder& folder) {
  WriteGgufModel(folder, "qwen_image", "golden-newer/pipelines/qwen_image", QwenImageGguf(kGoldenQwenVl));
}

}  // namespace tessera
