// The names of result files: one for each attempt, so that an old one can never replace what a newer one wrote.
#pragma once

#include <optional>
#include <string>

#include "server/jobs/job_record.h"

namespace tessera::server {

std::string ResultFileName(const TaskAttempt& attempt);

// The attempt whose file has this name; nothing for a name of another kind.
std::optional<TaskAttempt> AttemptOfFile(const std::string& file);

}  // namespace tessera::server
