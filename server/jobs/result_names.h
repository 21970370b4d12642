// The names of result files. Each attempt has a separate name, so that an old attempt can never replace a newer one's
// file.
#pragma once

#include <optional>
#include <string>

#include "server/jobs/job_record.h"

namespace tessera::server {

std::string ResultFileName(const TaskAttempt& attempt);

// Returns the attempt whose file has this name; nullopt for any other name.
std::optional<TaskAttempt> AttemptOfFile(const std::string& file);

}  // namespace tessera::server
