// Compares the ids of prompts that hold pictures.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "models/weights/model_folder.h"
#include "tests/golden_runner/golden_case.h"

namespace tessera::control {
struct Frames;
}

namespace tessera::golden {

// Compares the ids and positions of a prompt and its pictures, as the processor gets them, with "KEY.input_ids" and
// "KEY.position_ids" of the gold, if it has them.
absl::Status CompareIdsWithPictures(const models::ModelFolder& folder, const std::string& prompt,
                                    const std::vector<control::Frames>& pictures, const std::string& key,
                                    const Tensors& gold, Report& report);

}  // namespace tessera::golden
