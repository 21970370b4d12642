#include "server/verification/subject_json.h"

#include <string>
#include <utility>

namespace tessera::server {
namespace {

constexpr std::pair<const char*, std::string CertificateSubject::*> kFields[] = {
    {"model_digest", &CertificateSubject::model_digest},
    {"layout", &CertificateSubject::layout},
    {"device", &CertificateSubject::device},
    {"dtype", &CertificateSubject::dtype},
    {"storage", &CertificateSubject::storage},
    {"products", &CertificateSubject::products},
    {"build", &CertificateSubject::build},
    {"plugin", &CertificateSubject::plugin},
    {"libraries", &CertificateSubject::libraries},
    {"gpu", &CertificateSubject::gpu},
    {"driver", &CertificateSubject::driver},
    {"cudnn", &CertificateSubject::cudnn},
    {"nccl", &CertificateSubject::nccl},
    {"communicator", &CertificateSubject::communicator}};

}  // namespace

void AddSubject(const CertificateSubject& subject, boost::json::object& object) {
  for (const auto& [name, field] : kFields) object[name] = subject.*field;
}

CertificateSubject ReadSubject(const boost::json::object& object) {
  CertificateSubject subject;
  for (const auto& [name, field] : kFields) subject.*field = std::string(object.at(name).as_string());
  return subject;
}

}  // namespace tessera::server
