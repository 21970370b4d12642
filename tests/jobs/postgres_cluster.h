// PostgresCluster is a temporary PostgreSQL server that tests can kill and start again.
//
// It uses Debian's programs as unpacked by scripts/setup.sh --checks, or those of the system. PostgreSQL refuses to run
// as root, so if the test is root, the server runs as an unprivileged user. It is reachable only through a socket in
// its folder.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "server/jobs/postgres.h"

namespace tessera {

class PostgresCluster {
 public:
  // `syncs`: committed data survives a loss of power. Tests that only kill processes do not need it.
  explicit PostgresCluster(bool syncs);
  ~PostgresCluster();

  PostgresCluster(const PostgresCluster&) = delete;
  PostgresCluster& operator=(const PostgresCluster&) = delete;

  // Creates a database and returns its address.
  server::PostgresAddress NewDatabase();
  // Runs the statements as the superuser. Fails the test on an error.
  void Run(const server::PostgresAddress& database, const std::string& sql);
  // From now on, this database's clock is ahead of the machine's by `ahead`, in whole seconds.
  void SetCalendar(const server::PostgresAddress& database, absl::Duration ahead);
  // Dumps one database and restores the dump into the other, with the commands of docs/operations.md.
  void Restore(const server::PostgresAddress& from, const server::PostgresAddress& into) const;
  // Returns the single number that the statement returns.
  int64_t Ask(const server::PostgresAddress& database, const std::string& sql);
  // Drops everything that the database sends from now on over this process's open connections. What the connections
  // send still arrives, so the answers to pending statements are lost.
  void LoseAnswers() const;

  void Start();  // returns when the server answers
  void Kill();   // sends SIGKILL to all its processes
  void Stop();   // disconnects all clients
  // Returns the process id of the main `postgres` process.
  pid_t pid() const { return pid_; }

 private:
  server::PostgresAddress AddressOf(const std::string& database) const;
  int Execute(const std::string& program, const std::string& arguments);
  pid_t Launch(const std::string& program, const std::string& arguments);
  std::string Log() const;

  const bool syncs_;
  std::string folder_;
  pid_t pid_ = -1;
  int databases_ = 0;
};

// Returns the folder of Debian's PostgreSQL programs.
std::string PostgresPrograms();

}  // namespace tessera
