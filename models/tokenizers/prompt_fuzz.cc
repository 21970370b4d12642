// Encodes arbitrary bytes as a prompt with CLIP's and BERT's tokenizers in both forms, and with T5's as tokenizer.json.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tests/support/fuzz_tokens.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tessera::models::LoadTokenizer;
  static const absl::StatusOr<std::unique_ptr<tessera::models::Tokenizer>> tokenizers[] = {
      LoadTokenizer("CLIPTokenizer", "tests/golden/pipelines/sd3/tokenizer"),
      LoadTokenizer("CLIPTokenizer", "tests/golden/pipelines/sd3/tokenizer_2"),
      LoadTokenizer("BertTokenizer", "tests/golden/pipelines/hunyuan11/tokenizer"),
      LoadTokenizer("CLIPTokenizer", "tests/golden/saved_tokenizers/sd3.tokenizer_2"),
      LoadTokenizer("BertTokenizer", "tests/golden/saved_tokenizers/hunyuan11.tokenizer"),
      LoadTokenizer("MT5Tokenizer", "tests/golden/saved_tokenizers/hunyuan11.tokenizer_2")};
  for (const auto& tokenizer : tokenizers) {
    if (!tokenizer.ok()) std::abort();
    tessera::CheckTokens(**tokenizer, std::string_view(reinterpret_cast<const char*>(data), size));
  }
  return 0;
}
