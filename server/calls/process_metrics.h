// What Prometheus' clients tell of the process they are in, under their usual names.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::server {

// Complete families in the text format: process_cpu_seconds_total, process_resident_memory_bytes,
// process_virtual_memory_bytes, process_start_time_seconds, process_open_fds, process_max_fds, process_threads. Where
// /proc does not tell one, it is left out.
std::string ProcessMetricsText();

// One sample, 1, whose labels say what was built and with what.
std::string BuildInfoText(const std::string& version);

// One counter: the lines of the log that standard error did not take.
std::string DroppedLogLinesText(int64_t lines);

// Descriptors that this process has open; 0: not known.
int64_t OpenDescriptors();
// That it may have open at the most.
int64_t MostDescriptors();

}  // namespace tessera::server
