// The published models that Tessera runs: one table for `tessera models`, `tessera pull` and the suggestions for a
// model that is not on this machine. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

namespace tessera::client {

struct PublishedModel {
  const char* name;      // ORG/NAME on the hub
  const char* pipeline;  // class
  double gigabytes;      // about what `tessera pull` downloads, in units of 10^9 bytes
  const char* licence;   // the hub's identifier
  bool needs_login;      // its licence must be accepted on its page
};

absl::Span<const PublishedModel> PublishedModels();

// Returns the entry of that name; null if there is none.
const PublishedModel* FindPublishedModel(std::string_view name);

// Returns at most four models that the text may mean, such as all of FLUX.1 for "flux".
std::vector<const PublishedModel*> PublishedModelsLike(const std::string& text);

// Returns "yes", "no" or "read it": whether a licence allows commercial use of the model. Only licences that are the
// same for everybody are "yes" or "no"; one with conditions has to be read.
std::string CommercialUseOf(std::string_view licence);

// Returns "about 33.7 GB".
std::string AboutSize(const PublishedModel& model);

}  // namespace tessera::client
