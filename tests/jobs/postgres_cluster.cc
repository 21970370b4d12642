#include "tests/jobs/postgres_cluster.h"

#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <pwd.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/wait_until.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr char kUser[] = "tessera";
constexpr char kPassword[] = "a password; it's \"quoted\" & long";

std::string TextOf(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Returns the child processes of `pid`.
std::vector<pid_t> ChildrenOf(pid_t pid) {
  std::vector<pid_t> children;
  std::istringstream text(TextOf(absl::StrCat("/proc/", pid, "/task/", pid, "/children")));
  for (pid_t child = 0; text >> child;) children.push_back(child);
  return children;
}

// Returns whether every user may enter the folder.
bool IsOpenToAll(fs::path folder) {
  struct stat about = {};
  for (folder = fs::canonical(folder); stat(folder.c_str(), &about) == 0; folder = folder.parent_path()) {
    if ((about.st_mode & S_IXOTH) == 0) return false;
    if (folder == folder.root_path()) return true;
  }
  return false;
}

// A copy of Debian's PostgreSQL that every user may read. It exists as long as this process lives.
class OpenCopy {
 public:
  explicit OpenCopy(const fs::path& usr) : folder_("/tmp/tessera_pg_programs_XXXXXX") {
    if (mkdtemp(folder_.data()) == nullptr) ADD_FAILURE() << "cannot make " << folder_;
    chmod(folder_.c_str(), 0755);
    for (const char* part : {"lib/postgresql", "share/postgresql"}) {
      fs::create_directories((fs::path(folder_) / part).parent_path());
      fs::copy(usr / part, fs::path(folder_) / part, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    }
  }
  ~OpenCopy() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  OpenCopy(const OpenCopy&) = delete;
  OpenCopy& operator=(const OpenCopy&) = delete;

  std::string programs() const { return folder_ + "/lib/postgresql/15/bin"; }

 private:
  std::string folder_;
};

}  // namespace

std::string PostgresPrograms() {
  for (const char* folder : {POSTGRES_PROGRAMS, "/usr/lib/postgresql/15/bin"}) {
    if (access(absl::StrCat(folder, "/postgres").c_str(), X_OK) != 0) continue;
    // The repository may be in a private folder.
    if (geteuid() != 0 || IsOpenToAll(folder)) return folder;
    static const OpenCopy copy(fs::path(folder).parent_path().parent_path().parent_path().parent_path());
    return copy.programs();
  }
  ADD_FAILURE() << "there is no PostgreSQL; scripts/setup.sh --checks unpacks it";
  return "";
}

PostgresCluster::PostgresCluster(bool syncs) : syncs_(syncs), folder_("/tmp/tessera_pg_XXXXXX") {
  if (mkdtemp(folder_.data()) == nullptr) ADD_FAILURE() << "cannot make " << folder_;
  chmod(folder_.c_str(), 0755);
  std::ofstream(folder_ + "/password") << kPassword << "\n";
  if (const passwd* nobody = getpwnam("nobody"); geteuid() == 0 && nobody != nullptr) {
    EXPECT_EQ(chown(folder_.c_str(), nobody->pw_uid, nobody->pw_gid), 0);
  }
  EXPECT_EQ(Execute("initdb", absl::StrCat("-D ", folder_, "/data -U ", kUser, " -A scram-sha-256 --pwfile ", folder_,
                                           "/password -E UTF8 --locale C --no-sync --no-instructions")),
            0)
      << Log();
  Start();
}

PostgresCluster::~PostgresCluster() {
  Kill();
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

std::string PostgresCluster::Log() const { return TextOf(folder_ + "/log"); }

pid_t PostgresCluster::Launch(const std::string& program, const std::string& arguments) {
  std::vector<std::string> words = absl::StrSplit(arguments, ' ');
  words.insert(words.begin(), absl::StrCat(PostgresPrograms(), "/", program));
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int log = open((folder_ + "/log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  const passwd* nobody = getpwnam("nobody");
  const pid_t pid = fork();
  if (pid != 0) {
    close(log);
    return pid;
  }
  if (geteuid() == 0 && nobody != nullptr) {
    if (setgroups(0, nullptr) != 0 || setgid(nobody->pw_gid) != 0 || setuid(nobody->pw_uid) != 0) _exit(126);
  }
  prctl(PR_SET_PDEATHSIG, SIGQUIT);  // PostgreSQL's immediate shutdown
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  if (chdir(folder_.c_str()) != 0) _exit(126);
  execv(argv[0], argv.data());
  _exit(127);
}

int PostgresCluster::Execute(const std::string& program, const std::string& arguments) {
  const pid_t pid = Launch(program, arguments);
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void PostgresCluster::Start() {
  pid_ = Launch("postgres", absl::StrCat("-D ", folder_, "/data -k ", folder_,
                                         " -c listen_addresses= -c jit=off -c shared_buffers=16MB -c "
                                         "max_connections=80 -c dynamic_shared_memory_type=posix -c log_min_messages="
                                         "error -c fsync=",
                                         syncs_ ? "on" : "off",
                                         " -c wal_sync_method=fdatasync -c recovery_init_sync_method=syncfs"));
  WaitUntil("the database answers", [this] {
    int status = 0;
    // Remains of a killed server may prevent the start for a moment.
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      Start();
      return true;
    }
    return server::PostgresConnection::Open(AddressOf("postgres")).ok();
  });
}

void PostgresCluster::Kill() {
  if (pid_ <= 0) return;
  const std::vector<pid_t> children = ChildrenOf(pid_);
  kill(pid_, SIGKILL);
  for (const pid_t child : children) kill(child, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
  WaitUntil("its processes have gone", [&] {
    for (const pid_t child : children) {
      if (kill(child, 0) == 0 && !TextOf(absl::StrCat("/proc/", child, "/cmdline")).empty()) return false;
    }
    return true;
  });
}

void PostgresCluster::Stop() {
  kill(pid_, SIGINT);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

server::PostgresAddress PostgresCluster::AddressOf(const std::string& database) const {
  return {.dsn = absl::StrCat("host=", folder_, " user=", kUser, " dbname=", database),
          .password_file = folder_ + "/password"};
}

server::PostgresAddress PostgresCluster::NewDatabase() {
  const std::string name = absl::StrCat("test", ++databases_);
  Run(AddressOf("postgres"), absl::StrCat("CREATE DATABASE ", name));
  return AddressOf(name);
}

void PostgresCluster::Restore(const server::PostgresAddress& from, const server::PostgresAddress& into) const {
  const std::string bundled = POSTGRES_CLIENT_PROGRAMS, dump = folder_ + "/queue.dump";
  const std::string programs =
      access((bundled + "/pg_dump").c_str(), X_OK) == 0 ? bundled : "/usr/lib/postgresql/15/bin";
  setenv("PGPASSWORD", kPassword, 1);
  const std::string save =
      absl::StrCat(programs, "/pg_dump --format=custom --schema=tessera --dbname='", from.dsn, "' --file=", dump);
  EXPECT_EQ(std::system(save.c_str()), 0) << save;
  const std::string restore = absl::StrCat(programs, "/pg_restore --exit-on-error --dbname='", into.dsn, "' ", dump);
  EXPECT_EQ(std::system(restore.c_str()), 0) << restore;
  unsetenv("PGPASSWORD");
}

int64_t PostgresCluster::Ask(const server::PostgresAddress& database, const std::string& sql) {
  const auto connection = server::PostgresConnection::Open(database);
  EXPECT_TRUE(connection.ok()) << connection.status();
  if (!connection.ok()) return -1;
  const auto rows = (*connection)->Query(sql.c_str());
  EXPECT_TRUE(rows.ok() && rows->size() == 1) << rows.status();
  return rows.ok() && rows->size() == 1 ? rows->Int(0, 0) : -1;
}

void PostgresCluster::SetCalendar(const server::PostgresAddress& database, absl::Duration ahead) {
  // The replacement needs another object id, because PostgreSQL calls its built-in functions by id without reading
  // their definition.
  Run(database, absl::StrCat("DO $$ BEGIN IF to_regproc('pg_catalog.machine_clock') IS NULL THEN ALTER FUNCTION "
                             "pg_catalog.clock_timestamp() RENAME TO machine_clock; END IF; END $$; CREATE OR REPLACE "
                             "FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT "
                             "pg_catalog.machine_clock() + interval ''",
                             absl::ToInt64Seconds(ahead), " s'''"));
}

void PostgresCluster::LoseAnswers() const {
  std::vector<int> files;  // collected first, because a disconnected client soon opens a new one
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    files.push_back(std::atoi(entry.path().filename().c_str()));
  }
  for (const int fd : files) {
    sockaddr_un peer = {};
    socklen_t size = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0 || peer.sun_family != AF_UNIX) continue;
    if (absl::StartsWith(peer.sun_path, folder_)) shutdown(fd, SHUT_RD);
  }
}

void PostgresCluster::Run(const server::PostgresAddress& database, const std::string& sql) {
  const auto connection = server::PostgresConnection::Open(database);
  ASSERT_TRUE(connection.ok()) << connection.status() << "\n" << Log();
  const absl::Status done = (*connection)->RunScript(sql.c_str());
  EXPECT_TRUE(done.ok()) << done;
}

}  // namespace tessera
