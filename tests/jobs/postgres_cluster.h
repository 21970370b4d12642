// For tests: a PostgreSQL of their own, which can be killed and started again, and goes away with them.
//
// Debian's programs, as scripts/setup.sh --checks unpacks them, or those of the system. It runs as a user without
// rights where the test has them, since PostgreSQL refuses those, and is reached through a socket in its folder alone.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "server/jobs/postgres.h"

namespace tessera {

class PostgresCluster {
 public:
  // `syncs`: what it says is durable survives a loss of power; tests that kill processes alone need no disk for that.
  explicit PostgresCluster(bool syncs);
  ~PostgresCluster();

  PostgresCluster(const PostgresCluster&) = delete;
  PostgresCluster& operator=(const PostgresCluster&) = delete;

  // A new database: where it is.
  server::PostgresAddress NewDatabase();
  // As the superuser; a failed test if it does not work.
  void Run(const server::PostgresAddress& database, const std::string& sql);
  // What this database's clock says from now on is ahead of the machine's own by whole seconds.
  void SetCalendar(const server::PostgresAddress& database, absl::Duration ahead);
  // A dump of the one database, restored in the other, by the commands of docs/operations.md.
  void Restore(const server::PostgresAddress& from, const server::PostgresAddress& into) const;
  // The one number that the statement finds.
  int64_t Ask(const server::PostgresAddress& database, const std::string& sql);
  // Nothing that the database sends from now on arrives over the connections of this process that there are; what they
  // send still does. So the answers to what is under way are lost.
  void LoseAnswers() const;

  void Start();  // returns when it answers
  void Kill();   // kill -9 of all its processes
  void Stop();   // those that are connected are sent away
  // Its main process, that of `postgres` itself.
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

// Where Debian's programs of PostgreSQL are.
std::string PostgresPrograms();

}  // namespace tessera
