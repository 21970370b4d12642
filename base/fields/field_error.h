// Errors about one field of a request, passed from where they are detected to the interface that reports them.
//
// The front end, the workers and the job store identify a field by its id; only an interface knows the field's name for
// a caller.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera::base {

// Returns INVALID_ARGUMENT for the field with this id, or with this id and "[]" for one value of its list. The message
// is the id followed by `rest`.
absl::Status ErrorOfField(absl::string_view id, absl::string_view rest);

// Returns `status` as an error about that field; its message must begin with the id. Without an id, returns `status`.
absl::Status WithField(absl::Status status, absl::string_view id);

// Returns the id of the field that an error is about, or an empty string.
std::string FieldOf(const absl::Status& status);

}  // namespace tessera::base
