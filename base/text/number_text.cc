#include "base/text/number_text.h"

#include <charconv>
#include <cmath>

namespace tessera::base {

std::string NumberText(double number) {
  const double size = std::abs(number);
  const bool fixed = size == 0 || (size >= 1e-6 && size < 1e21);
  char text[32];
  const std::to_chars_result end = std::to_chars(text, text + sizeof(text), number,
                                                 fixed ? std::chars_format::fixed : std::chars_format::scientific);
  return std::string(text, end.ptr);
}

}  // namespace tessera::base
