// Understands tags <lora:NAME:SCALE> in prompts, as other programs write them. Pure functions.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera::server {

struct ImageRequest;

// The adapters that tags may name: by the name in a tag, the name in the request's loras.
using AdapterNames = std::map<std::string, std::string>;

// Takes the tags out of the prompt, with the blanks that would stay next to other blanks or at an end. Each becomes an
// entry of loras; without a scale, its scale is 1. If loras has the adapter at scale 1, the tag sets its scale.
//
// INVALID_ARGUMENT about the prompt for a tag that is malformed, names another adapter, or gives an adapter a second
// scale; about another prompt field if it has a tag, which only the prompt may have. No tag is ever left in a prompt.
absl::Status TakePromptTags(const AdapterNames& adapters, ImageRequest& request);

}  // namespace tessera::server
