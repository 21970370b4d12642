// The files by which a server and its nodes know each other: a certificate with its key, the certificate of the
// authority that both trust, and a token. They are read anew for every connection, so whoever replaces them needs no
// restart.
#pragma once

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tessera::server {

struct NodeFiles {
  std::string certificate_chain, private_key, authority;  // PEM
  std::string token;                                      // at least 16 characters of its first line
};

// tls.crt, tls.key and ca.crt of a folder, as cert-manager writes them.
NodeFiles NodeFilesIn(const std::string& tls_folder, const std::string& token_file);

// INVALID_ARGUMENT naming the file, and what is wrong with it.
absl::Status CheckNodeFiles(const NodeFiles& files);
absl::StatusOr<std::string> ReadNodeToken(const NodeFiles& files);

// Of one connection of a node, with the files as they are now: the controller's certificate must be of the authority
// and name its host.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> NodeChannelCredentials(const NodeFiles& files);

// A listener's, which watch the files. They ask every node for a certificate; CheckPeer says what is wrong with it, as
// a handshake could not.
std::shared_ptr<grpc::ServerCredentials> NodeServerCredentials(const NodeFiles& files);

// UNAUTHENTICATED unless the peer has shown a certificate of the authority that is valid at this time.
absl::Status CheckPeer(const grpc::AuthContext& peer, const NodeFiles& files, absl::Time now);

// Whether two secrets are equal, in a time that says nothing of where they differ.
bool SameSecret(const std::string& a, const std::string& b);

}  // namespace tessera::server
