#include "control/parameters/job_parameters_wire.h"

#include <cstdlib>
#include <vector>

#include "control/parameters/message_fields.h"

namespace tessera::control {
namespace {

using google::protobuf::FieldDescriptor;

struct DescribedField {
  const FieldDescriptor* descriptor;
  bool has_presence;
};

// The message's fields in the order of the described fields. Finding them by name for each job would cost more than
// everything else here.
const DescribedField* DescribedFields() {
  static const auto* fields = [] {
    auto* found = new std::vector<DescribedField>;
    base::ForEachFieldOf<JobParameters>([found](const auto& field) {
      const FieldDescriptor* descriptor = internal::JobParameters::descriptor()->FindFieldByName(field.name);
      if (descriptor == nullptr) std::abort();  // a parameter that the message lacks
      found->push_back({descriptor, descriptor->has_presence()});
    });
    return found;
  }();
  return fields->data();
}

}  // namespace

void ToWire(const JobParameters& job, internal::JobParameters* wire) {
  const DescribedField* described = DescribedFields();
  const MessageWriter writer(*wire);
  base::ForEachField([&](const auto&, const auto& value) { writer.Put((described++)->descriptor, value); }, job);
}

void FromWire(const internal::JobParameters& wire, JobParameters& job) {
  static const JobParameters kDefaults;
  job = kDefaults;
  const DescribedField* described = DescribedFields();
  const MessageReader reader(wire);
  const auto read = [&](const auto&, auto& value) {
    const auto [from, has_presence] = *described++;
    if (!has_presence || reader.Has(from)) reader.Get(from, value);
  };
  base::ForEachField(read, job);
}

JobParameters FromWire(const internal::JobParameters& wire) {
  JobParameters job;
  FromWire(wire, job);
  return job;
}

}  // namespace tessera::control
