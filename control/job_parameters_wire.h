// A job's parameters as the one message that travels to workers and lies in the job store
// (proto/tessera/internal/job_parameters.proto).
#pragma once

#include "control/job_parameters.h"
#include "tessera/internal/job_parameters.pb.h"

namespace tessera::control {

void ToWire(const JobParameters& job, internal::JobParameters* wire);

// What is absent has its default. Nothing is checked: base::CheckFields does. The first overwrites all of `job`, whose
// memory serves again.
void FromWire(const internal::JobParameters& wire, JobParameters& job);
JobParameters FromWire(const internal::JobParameters& wire);

}  // namespace tessera::control
