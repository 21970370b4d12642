// Tests a server whose wall clock jumps while it works, and a server that is idle for a simulated hour.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tessera/v1/image_service.grpc.pb.h"
#include "tests/faults/moved_clock.h"
#include "tests/faults/test_server.h"

namespace tessera {
namespace {

class ClockJumpTest : public ::testing::Test {
 protected:
  ClockJumpTest() : server_({.worker = FAKE_WORKER, .groups = {"{model: TINY, layout: \"cfg=2\"}"}}), clock_(server_) {
    server_.options().script = absl::StrCat("step-time=20 gate=", server_.folder(), "/gate");
  }

  absl::Duration FarAway() {
    return absl::FromUnixSeconds(server_.Get(server_.Submit("late")).at("created_at").as_int64()) - absl::Now();
  }

  // Waits until the log lines of the server show the new time. absl::Now reads the system clock only every two seconds.
  void WaitUntilItIsSeen(absl::Duration far) {
    const std::string month =
        absl::StrCat("{\"time\":\"", absl::FormatTime("%Y-%m-", absl::Now() + far, absl::UTCTimeZone()));
    WaitUntil("the time " + month, [&] {
      server_.Call("GET", "/v1/jobs/none");
      return absl::StrContains(server_.process().errors(), month);
    });
  }

  TestServer server_;
  MovedClock clock_;
};

TEST_F(ClockJumpTest, EndsNoJobNoWorkerAndNoWait) {
  ASSERT_TRUE(server_.Start());
  server_.WaitUntilReady();
  EXPECT_EQ(server_.Ended(server_.Submit("warm up")), "done");
  const std::vector<pid_t> workers = server_.Workers();
  for (const absl::Duration far : {absl::Hours(24 * 365), -absl::Hours(24 * 365)}) {
    // The first job's first step makes no progress until the gate opens. The second job has a deadline of a quarter of
    // an hour.
    const std::string running = server_.Submit("gated apple", R"(, "num_inference_steps": 20)");
    const std::string patient = server_.Submit("pear", R"(, "deadline_ms": 900000)");
    WaitUntil("a job that runs", [&] { return server_.StatusOf(running) == "running"; });
    clock_.JumpTo(far);
    WaitUntilItIsSeen(far);
    server_.Write("gate", "");
    EXPECT_EQ(server_.Ended(running), "done");
    EXPECT_EQ(server_.Ended(patient), "done");
    std::filesystem::remove(server_.folder() + "/gate");
    EXPECT_EQ(server_.Call("GET", "/readyz").status, 200);
    EXPECT_EQ(server_.Call("GET", absl::StrCat("/v1/jobs/", running)).status, 200) << "its retention is not over";
  }
  EXPECT_EQ(server_.Workers(), workers);
  EXPECT_EQ(server_.Group().at("restarts").as_int64(), 0);
  EXPECT_EQ(server_.Terminate(), 0);
}

TEST_F(ClockJumpTest, IsSeenByTheServerAtItsNextStart) {
  clock_.JumpTo(absl::Hours(24 * 365));
  ASSERT_TRUE(server_.Start());
  EXPECT_GT(FarAway(), absl::Hours(24 * 364)) << "the clock of these tests does not jump";
  EXPECT_EQ(server_.Terminate(), 0);
}

TEST_F(ClockJumpTest, OneStartWithAWrongClockLosesNoResult) {
  ASSERT_TRUE(server_.Start());
  const std::string before = server_.Submit("before");
  EXPECT_EQ(server_.Ended(before), "done");
  EXPECT_EQ(server_.Terminate(), 0);
  clock_.JumpTo(absl::Hours(72));
  ASSERT_TRUE(server_.Start());
  EXPECT_EQ(server_.Ended(server_.Submit("meanwhile")), "done");
  EXPECT_EQ(server_.Terminate(), 0);
  clock_.JumpTo(absl::ZeroDuration());
  ASSERT_TRUE(server_.Start());
  EXPECT_EQ(server_.Call("GET", absl::StrCat("/v1/jobs/", before)).status, 200) << "its retention is not over";
  EXPECT_LT(absl::AbsDuration(FarAway()), absl::Minutes(10)) << "a new job has the time of the clock";
  server_.WaitUntilLogged("the newest time in the job store is ");
  EXPECT_EQ(server_.Terminate(), 0);
}

// A grpc.health.v1.Health/Watch call that has received the status SERVING.
class HealthWatch {
 public:
  explicit HealthWatch(const std::shared_ptr<grpc::Channel>& channel) : stub_(channel) {
    call_ = stub_.PrepareCall(&context_, "/grpc.health.v1.Health/Watch", &queue_);
    call_->StartCall(this);
    EXPECT_TRUE(Happens());
    const grpc::Slice request;  // for all services
    call_->Write(grpc::ByteBuffer(&request, 1), grpc::WriteOptions().set_last_message(), this);
    EXPECT_TRUE(Happens());
    do {
      call_->Read(&answer_, this);
    } while (Happens() && !Serves());
    call_->Read(&answer_, this);
  }
  ~HealthWatch() {
    context_.TryCancel();
    Happens();
    grpc::Status status;
    call_->Finish(&status, this);
    Happens();
  }

  // Returns whether nothing has arrived since, neither a status nor the end of the call.
  bool IsOpen() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.AsyncNext(&tag, &ok, std::chrono::system_clock::now()) == grpc::CompletionQueue::TIMEOUT;
  }

 private:
  bool Serves() const {
    grpc::Slice bytes;  // HealthCheckResponse{status: SERVING}
    return answer_.DumpToSingleSlice(&bytes).ok() && std::string(bytes.begin(), bytes.end()) == "\x08\x01";
  }

  bool Happens() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.AsyncNext(&tag, &ok, std::chrono::system_clock::now() + std::chrono::seconds(60)) ==
               grpc::CompletionQueue::GOT_EVENT &&
           ok;
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  grpc::ByteBuffer answer_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

grpc::Status GetServerInfo(v1::ImageService::Stub& stub) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  v1::ServerInfo info;
  return stub.GetServerInfo(&context, {}, &info);
}

class IdleHourTest : public ClockJumpTest {
 protected:
  IdleHourTest() {
    server_.options().grpc = "{port: 0}";
    server_.options().settings = "limits: {idle_time: 5m}\n";  // far above the minute that passes between two calls
    server_.options().script = "step-time=20";
    EXPECT_TRUE(server_.Start());
    server_.WaitUntilReady();
    EXPECT_EQ(server_.Ended(server_.Submit("warm up")), "done");
    workers_ = server_.Workers();
    channel_ = grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_.grpc_port()), grpc::InsecureChannelCredentials());
    stub_ = v1::ImageService::NewStub(channel_);
    EXPECT_TRUE(GetServerInfo(*stub_).ok());
  }

  // Checks that all listeners serve as before, with the same processes.
  void ExpectServed() {
    EXPECT_EQ(server_.Call("GET", "/readyz").status, 200);
    EXPECT_EQ(server_.Ended(server_.Submit("late")), "done");
    const grpc::Status status = GetServerInfo(*stub_);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(server_.Workers(), workers_);
    EXPECT_EQ(server_.Group().at("restarts").as_int64(), 0);
  }

  std::vector<pid_t> workers_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::ImageService::Stub> stub_;
};

TEST_F(IdleHourTest, AtOnceEndsIdleConnectionsOfHttpAndNothingElse) {
  HttpTestClient idle(server_.port());
  ASSERT_EQ(idle.Call("GET", "/livez").status, 200);
  HealthWatch watch(channel_);
  clock_.Pass(absl::Hours(1));
  ExpectServed();
  EXPECT_TRUE(idle.WaitForEnd());
  EXPECT_TRUE(watch.IsOpen());
  EXPECT_NEAR(absl::ToDoubleMinutes(FarAway()), 60, 1) << "the clock of this test does not move";
  EXPECT_EQ(server_.Terminate(), 0);
}

TEST_F(IdleHourTest, MinuteByMinuteFindsTheServerReadyAllTheWhile) {
  HttpTestClient idle(server_.port());
  ASSERT_EQ(idle.Call("GET", "/livez").status, 200);
  clock_.Pass(absl::Minutes(1));
  EXPECT_EQ(idle.Call("GET", "/livez").status, 200) << "it was idle for less than idle_time";
  for (int minute = 1; minute < 60; ++minute) {
    clock_.Pass(absl::Minutes(1));
    EXPECT_EQ(server_.Call("GET", "/readyz").status, 200) << "after minute " << minute;
  }
  EXPECT_TRUE(idle.WaitForEnd());
  ExpectServed();
  EXPECT_EQ(server_.Terminate(), 0);
}

}  // namespace
}  // namespace tessera
