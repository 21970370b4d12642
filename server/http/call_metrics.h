// What the HTTP edge counts, in Prometheus' terms. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "server/http/api_call.h"

namespace tessera {

class CallMetrics {
 public:
  CallMetrics();
  ~CallMetrics();

  void Record(const CallRecord& call);

  // Complete families in the text format.
  std::string Text() const;

 private:
  struct Families;
  const std::unique_ptr<Families> families_;
};

}  // namespace tessera
