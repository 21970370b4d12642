// SharedServers are servers that share one queue: a separate database, one folder of images, and any number of servers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/faults/test_server.h"
#include "tests/jobs/postgres_cluster.h"
#include "tests/support/test_folder.h"

namespace tessera {

class SharedServers {
 public:
  explicit SharedServers(PostgresCluster& cluster) : database_(cluster.NewDatabase()) {}

  // Adds a server without starting it. `options` has no store and no data folder; `lease` as in the configuration.
  TestServer& Add(TestServerOptions options, const std::string& lease = "1s") {
    options.data_folder = folder_ / "data";
    // On a busy machine, the database can take long to answer.
    options.settings +=
        absl::StrCat("store: {dsn: \"", database_.dsn,
                     " connect_timeout=30\", password_file: ", database_.password_file, ", lease: ", lease, "}\n");
    servers_.push_back(std::make_unique<TestServer>(options));
    return *servers_.back();
  }
  TestServer& at(size_t index) { return *servers_[index]; }
  size_t size() const { return servers_.size(); }
  const server::PostgresAddress& database() const { return database_; }
  std::string data_folder() const { return folder_ / "data"; }

 private:
  const server::PostgresAddress database_;
  TestFolder folder_;
  std::vector<std::unique_ptr<TestServer>> servers_;
};

}  // namespace tessera
