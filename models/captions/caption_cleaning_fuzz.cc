// Cleans arbitrary bytes as a caption: the result is well-formed UTF-8, and cleaning neither crashes nor takes too many
// steps.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "models/captions/caption_cleaning.h"
#include "models/captions/python_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const std::string& result : {tessera::models::CleanCaption(text).value(), tessera::models::PlainCaption(text)}) {
    if (!tessera::models::caption::DecodeUtf8Strictly(result, /*allow_variants=*/false)) std::abort();
  }
  return 0;
}
