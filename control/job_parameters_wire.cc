#include "control/job_parameters_wire.h"

#include <cstdlib>
#include <string>
#include <vector>

namespace tessera {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Reflection;

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

struct Writer {
  const Reflection& reflection;
  internal::JobParameters& wire;

  void Put(const FieldDescriptor* to, const std::string& from) const { reflection.SetString(&wire, to, from); }
  void Put(const FieldDescriptor* to, const std::optional<std::string>& from) const {
    if (from.has_value()) Put(to, *from);
  }
  void Put(const FieldDescriptor* to, bool from) const { reflection.SetBool(&wire, to, from); }
  void Put(const FieldDescriptor* to, int32_t from) const { reflection.SetInt32(&wire, to, from); }
  void Put(const FieldDescriptor* to, uint64_t from) const { reflection.SetUInt64(&wire, to, from); }
  void Put(const FieldDescriptor* to, double from) const { reflection.SetDouble(&wire, to, from); }
  void Put(const FieldDescriptor* to, const std::vector<int32_t>& from) const {
    for (const int32_t number : from) reflection.AddInt32(&wire, to, number);
  }
};

struct Reader {
  const Reflection& reflection;
  const internal::JobParameters& wire;

  void Get(const FieldDescriptor* from, std::string& to) const { to = reflection.GetStringReference(wire, from, &to); }
  void Get(const FieldDescriptor* from, std::optional<std::string>& to) const { Get(from, to.emplace()); }
  void Get(const FieldDescriptor* from, bool& to) const { to = reflection.GetBool(wire, from); }
  void Get(const FieldDescriptor* from, int32_t& to) const { to = reflection.GetInt32(wire, from); }
  void Get(const FieldDescriptor* from, uint64_t& to) const { to = reflection.GetUInt64(wire, from); }
  void Get(const FieldDescriptor* from, double& to) const { to = reflection.GetDouble(wire, from); }
  void Get(const FieldDescriptor* from, std::vector<int32_t>& to) const {
    for (int i = 0; i < reflection.FieldSize(wire, from); ++i) to.push_back(reflection.GetRepeatedInt32(wire, from, i));
  }
};

}  // namespace

void ToWire(const JobParameters& job, internal::JobParameters* wire) {
  const DescribedField* described = DescribedFields();
  const Writer writer{*wire->GetReflection(), *wire};
  VisitParameters([&](const char*, Bounds, const auto& value) { writer.Put((described++)->descriptor, value); }, job);
}

JobParameters FromWire(const internal::JobParameters& wire) {
  JobParameters job;
  const DescribedField* described = DescribedFields();
  const Reader reader{*wire.GetReflection(), wire};
  const auto read = [&](const char*, Bounds, auto& value) {
    const auto [from, has_presence] = *described++;
    if (!has_presence || reader.reflection.HasField(wire, from)) reader.Get(from, value);
  };
  VisitParameters(read, job);
  return job;
}

}  // namespace tessera
