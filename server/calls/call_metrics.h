// CallMetrics counts the calls of the edges in Prometheus form. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "server/calls/call_record.h"

namespace tessera::server {

class CallMetrics {
 public:
  CallMetrics();
  ~CallMetrics();

  void Record(const CallRecord& call);

  // Returns complete metric families in the text format.
  std::string Text() const;

 private:
  struct Families;
  const std::unique_ptr<Families> families_;
};

}  // namespace tessera::server
