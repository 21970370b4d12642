#include "control/job_parameters_wire.h"

#include <cstdlib>
#include <vector>

#include "control/message_fields.h"

namespace tessera::control {
namespace {

using google::protobuf::FieldDescriptor;

struct DescribedField {
  const FieldDescriptor* descriptor;
  bool has_presence;
};

// The message's fields in the order of the walk: looking them up by name for each job would cost more than all else.
const DescribedField* DescribedFields() {
  static const auto* fields = [] {
    auto* found = new std::vector<DescribedField>;
    VisitParameters([found](const char* id, Bounds) {
      const FieldDescriptor* field = internal::JobParameters::descriptor()->FindFieldByName(id);
      if (field == nullptr) std::abort();  // a parameter without its line in the message
      found->push_back({field, field->has_presence()});
    });
    return found;
  }();
  return fields->data();
}

}  // namespace

void ToWire(const JobParameters& job, internal::JobParameters* wire) {
  const DescribedField* described = DescribedFields();
  const MessageWriter writer(*wire);
  VisitParameters([&](const char*, Bounds, const auto& value) { writer.Put((described++)->descriptor, value); }, job);
}

void FromWire(const internal::JobParameters& wire, JobParameters& job) {
  static const JobParameters kDefaults;
  job = kDefaults;
  const DescribedField* described = DescribedFields();
  const MessageReader reader(wire);
  const auto read = [&](const char*, Bounds, auto& value) {
    const auto [from, has_presence] = *described++;
    if (!has_presence || reader.Has(from)) reader.Get(from, value);
  };
  VisitParameters(read, job);
}

JobParameters FromWire(const internal::JobParameters& wire) {
  JobParameters job;
  FromWire(wire, job);
  return job;
}

}  // namespace tessera::control
