// Process metrics under the usual names of Prometheus' client libraries.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::server {

// Returns complete families in the text format: process_cpu_seconds_total, process_resident_memory_bytes,
// process_virtual_memory_bytes, process_start_time_seconds, process_open_fds, process_max_fds, process_threads, and the
// memory limit with its effects: tessera_memory_limit_bytes, tessera_memory_in_use_bytes,
// tessera_out_of_memory_kills_total. A family that the system does not provide is left out.
std::string ProcessMetricsText();

// Returns one sample with value 1, whose labels describe the build.
std::string BuildInfoText(const std::string& version);

// Returns one counter: log lines that could not be written to standard error.
std::string DroppedLogLinesText(int64_t lines);

// Returns the number of open descriptors of this process; 0: unknown.
int64_t OpenDescriptors();
// Returns the limit of that number.
int64_t MostDescriptors();

}  // namespace tessera::server
