// NodeFiles names the files by which a server and its nodes authenticate each other: a certificate with its key, the
// certificate of the authority that both trust, and a token. They are read again for every connection, so replacing
// them needs no restart.
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
  std::string token;                                      // first line of the file, at least 16 characters
};

// Returns tls.crt, tls.key and ca.crt of a folder, as cert-manager writes them.
NodeFiles NodeFilesIn(const std::string& tls_folder, const std::string& token_file);

// INVALID_ARGUMENT with the name of the file and what is wrong with it.
absl::Status CheckNodeFiles(const NodeFiles& files);
absl::StatusOr<std::string> ReadNodeToken(const NodeFiles& files);

// Returns credentials for one connection of a node from the current files. The controller's certificate must be issued
// by the authority and name its host.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> NodeChannelCredentials(const NodeFiles& files);

// Returns credentials for a listener, which watch the files. They request a certificate from every node but do not
// reject it; CheckPeer does, with a better message than a handshake could give.
std::shared_ptr<grpc::ServerCredentials> NodeServerCredentials(const NodeFiles& files);

// UNAUTHENTICATED unless the peer has shown a certificate of the authority that is valid at this time.
absl::Status CheckPeer(const grpc::AuthContext& peer, const NodeFiles& files, absl::Time now);

// Returns whether two secrets are equal, in a time that does not depend on where they differ.
bool SameSecret(const std::string& a, const std::string& b);

}  // namespace tessera::server
