// Converts a job's parameters to and from the message that is sent to workers and stored in the job store
// (proto/tessera/internal/job_parameters.proto).
#pragma once

#include "control/parameters/job_parameters.h"
#include "tessera/internal/job_parameters.pb.h"

namespace tessera::control {

void ToWire(const JobParameters& job, internal::JobParameters* wire);

// Absent fields get their defaults. Nothing is validated; base::CheckFields does that. The first overload overwrites
// all of `job` and reuses its memory.
void FromWire(const internal::JobParameters& wire, JobParameters& job);
JobParameters FromWire(const internal::JobParameters& wire);

}  // namespace tessera::control
