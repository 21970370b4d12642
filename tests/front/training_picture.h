// Small pictures with captions for runs of `tessera train`.
#pragma once

#include <string>

namespace tessera {

// Writes picture `index` and its caption into the folder. Pictures have two aspect ratios, so there are two buckets.
void WriteTrainingPicture(const std::string& folder, int index);

}  // namespace tessera
