// Errors about one field of a request, as they travel from where they are found to the edge that shows them.
//
// The front end, the workers and the job store call a field by its id; what its name is to a caller only an edge knows.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera::base {

// INVALID_ARGUMENT about the field with this id, or with "[]" behind it about one value of its list. The message is the
// id with `rest` behind it.
absl::Status ErrorOfField(absl::string_view id, absl::string_view rest);

// `status` as one about that field; its message must begin with the id. Without an id, `status` itself.
absl::Status WithField(absl::Status status, absl::string_view id);

// The id of the field that an error is about; empty: it is about none.
std::string FieldOf(const absl::Status& status);

}  // namespace tessera::base
