// Compares images independently of the layout that generated them.
#pragma once

#include <string>

namespace tessera {

// Returns the pixels and parameters of an image file without its layout. Returns `file` unchanged if it is not an
// image.
std::string PictureOf(const std::string& file);

}  // namespace tessera
