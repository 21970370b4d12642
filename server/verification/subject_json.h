// Reads and writes the subject of a certificate in JSON files.
#pragma once

#include <boost/json.hpp>

#include "server/verification/certificate.h"

namespace tessera::server {

// Appends the fields in a fixed order.
void AddSubject(const CertificateSubject& subject, boost::json::object& object);

// Throws std::exception if a field is missing or is not a text.
CertificateSubject ReadSubject(const boost::json::object& object);

}  // namespace tessera::server
