// What a certificate is about, as the files that speak of it spell it.
#pragma once

#include <boost/json.hpp>

#include "server/verification/certificate.h"

namespace tessera::server {

// Appends the fields in one order.
void AddSubject(const CertificateSubject& subject, boost::json::object& object);

// Throws std::exception where a field is missing or no text.
CertificateSubject ReadSubject(const boost::json::object& object);

}  // namespace tessera::server
