// Whether a gRPC listener of this process still accepts connections. gRPC 1.51 never accepts again after it has met a
// lack of file descriptors once, and tells nobody.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

namespace tessera {

enum class ListenerState {
  kAccepts,
  kSilent,   // no connection, or none on which the server says the first word, as HTTP/2 without TLS does
  kUnknown,  // no descriptor for the question, an address that is no number, or `given_up` said so
};

// Connects from this machine; asks `given_up` several times a second. For an address that stands for all of them the
// loopback one is asked.
ListenerState AskListener(const std::string& address, uint16_t port, absl::Duration patience,
                          absl::FunctionRef<bool()> given_up);

}  // namespace tessera
