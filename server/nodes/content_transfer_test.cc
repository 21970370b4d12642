// Tests that contents reach the hosts of ranks: senders and receivers of two nodes, connected without a network.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "server/nodes/content_receiver.h"
#include "server/nodes/content_sender.h"
#include "tests/support/content_runs.h"

namespace tessera::server {
namespace {

using ::testing::HasSubstr;

// A rank of a node with the node's folder of contents.
class Node {
 public:
  explicit Node(const std::string& folder)
      : contents_(*ContentStore::Open({.own_folder = folder})),
        receiver_(*contents_, [this](const internal::FromNode& message) { sender_.OnState(message.content()); }) {}

  absl::StatusOr<std::string> Bring(const PutContent& content, const std::string& path) {
    return sender_.Bring(content.digest(), path);
  }
  // The next pieces are changed before they arrive.
  void Damage() { damages_ = true; }
  void EndRank() { sender_.OnEnded("exited with status 3"); }
  size_t sent_bytes() const { return sent_bytes_; }
  ContentStore& contents() { return *contents_; }

 private:
  void Carry(internal::ContentPiece piece) {
    sent_bytes_ += piece.bytes().size();
    if (damages_ && !piece.bytes().empty()) (*piece.mutable_bytes())[0] ^= 1;
    EXPECT_TRUE(receiver_.Push(std::move(piece)).ok());
  }

  std::atomic<size_t> sent_bytes_ = 0;
  std::atomic<bool> damages_ = false;
  const std::unique_ptr<ContentStore> contents_;
  ContentSender sender_{[this](internal::ContentPiece piece) { Carry(std::move(piece)); }};
  ContentReceiver receiver_;
};

class ContentTransferTest : public testing::Test {
 protected:
  // Stores the content on the server's host and returns its path there.
  std::string PathHere(const PutContent& content) { return Put(*store_, content)->path; }

  const TestFolder folder_;
  const std::unique_ptr<ContentStore> store_ = OpenContents(folder_ / "server");
  const PutContent file_ = {ContentOwner::Server(), {std::string((11 << 20) + 7, 'p')}};
  const PutContent parts_ = {ContentOwner::Server(), {std::string((2 << 20) + 1, 't'), "{}"}};
  Node a_{folder_ / "a"}, b_{folder_ / "b"};
};

TEST_F(ContentTransferTest, FilesAndFoldersArriveAtEachNodeAndAreSentOnce) {
  for (const PutContent& content : {file_, parts_}) {
    const std::string here = PathHere(content);
    for (Node* node : {&a_, &b_}) {
      const absl::StatusOr<std::string> there = node->Bring(content, here);
      ASSERT_TRUE(there.ok()) << there.status();
      EXPECT_NE(*there, here);
      EXPECT_TRUE(IsFound(node->contents(), content));
      const size_t sent = node->sent_bytes();
      EXPECT_EQ(*node->Bring(content, here), *there);
      EXPECT_EQ(node->sent_bytes(), sent) << "the node has it";
    }
  }
}

TEST_F(ContentTransferTest, BytesThatChangeOnTheWayAreNotTakenUnderTheDigest) {
  const std::string here = PathHere(file_);
  a_.Damage();
  const absl::Status damaged = a_.Bring(file_, here).status();
  EXPECT_EQ(damaged.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(damaged.message()), HasSubstr("not those of the digest"));
  EXPECT_FALSE(IsFound(a_.contents(), file_));
}

TEST_F(ContentTransferTest, AFullDiskOfANodeIsNamedAndTheNextTryMaySucceed) {
  const std::string here = PathHere(parts_);
  BreakDisk(folder_ / "a", DiskCallFault::kFull, 0);
  const absl::Status full = a_.Bring(parts_, here).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("No space left on device"));
  EXPECT_THAT(std::string(full.message()), testing::Not(HasSubstr(folder_.path())));
  EXPECT_TRUE(RestoreDisk());
  ASSERT_TRUE(a_.Bring(parts_, here).ok());
  EXPECT_TRUE(IsFound(a_.contents(), parts_));
}

TEST_F(ContentTransferTest, ANodeWithoutAFolderTakesNone) {
  Node none("");
  const absl::Status refused = none.Bring(parts_, PathHere(parts_)).status();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("stores no contents"));
}

// A node that answers only that it lacks the content.
TEST_F(ContentTransferTest, FewBytesAreSentBeforeTheNodeHasWrittenThemAndTheEndOfTheRankEndsTheWait) {
  std::atomic<size_t> sent = 0;
  std::atomic<int> pieces = 0;
  ContentSender* to = nullptr;
  ContentSender sender([&](const internal::ContentPiece& piece) {
    sent += piece.bytes().size();
    ++pieces;
    internal::ContentState lacks;
    lacks.set_digest(piece.digest());
    if (piece.begins()) to->OnState(lacks);
    if (sent >= kContentWindowBytes) to->OnEnded("exited with status 3");
  });
  to = &sender;
  const std::string here = PathHere(file_);
  EXPECT_EQ(sender.Bring(file_.digest(), here).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(sent, kContentWindowBytes);
  EXPECT_EQ(sender.Bring(file_.digest(), here).status().code(), absl::StatusCode::kUnavailable);
}

// What a controller sends that is none.
class ContentReceiverTest : public ContentTransferTest {
 protected:
  ContentReceiverTest()
      : receiver_(*contents_, [this](const internal::FromNode& message) {
          const std::lock_guard lock(mutex_);
          answers_.push_back(message.content());
          changed_.notify_all();
        }) {}

  // Returns the node's error.
  std::string ErrorOf(const internal::ContentPiece& piece) {
    std::unique_lock lock(mutex_);
    answers_.clear();
    EXPECT_TRUE(receiver_.Push(piece).ok());
    changed_.wait(lock, [this] { return !answers_.empty(); });
    return answers_.back().error();
  }
  static internal::ContentPiece Piece(const std::string& digest, bool begins) {
    internal::ContentPiece piece;
    piece.set_rank(1);
    piece.set_digest(digest);
    piece.set_begins(begins);
    return piece;
  }

  const std::unique_ptr<ContentStore> contents_ = *ContentStore::Open({.own_folder = folder_ / "node"});
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<internal::ContentState> answers_;  // guarded by mutex_
  ContentReceiver receiver_;
};

TEST_F(ContentReceiverTest, PiecesThatNoControllerSendsAreRefusedAndLeaveNothing) {
  EXPECT_THAT(ErrorOf(Piece("../../x", true)), HasSubstr("no digest"));
  const std::string digest = file_.digest();
  EXPECT_EQ(ErrorOf(Piece(digest, true)), "");
  internal::ContentPiece outside = Piece(digest, false);
  outside.set_part("../../x");
  EXPECT_THAT(ErrorOf(outside), HasSubstr("not those that it may have"));
  EXPECT_EQ(ErrorOf(Piece(digest, true)), "");
  internal::ContentPiece large = Piece(digest, false);
  large.set_bytes(std::string(kContentPieceBytes + 1, 'x'));
  EXPECT_THAT(ErrorOf(large), HasSubstr("too large"));
  large.set_bytes("x");
  EXPECT_TRUE(receiver_.Push(large).ok()) << "it was given up, so this is the rest of it";
  EXPECT_EQ(ErrorOf(Piece(digest, true)), "");
  EXPECT_EQ(ErrorOf(Piece(std::string(64, 'a'), true)), "") << "a rank has one transfer at a time";
  internal::ContentPiece end = Piece(std::string(64, 'a'), false);
  end.set_ends(true);
  EXPECT_THAT(ErrorOf(end), HasSubstr("not those of the digest"));
  EXPECT_EQ(LeftOvers(folder_ / "node"), 0);
}

TEST_F(ContentReceiverTest, AControllerThatDoesNotWaitForAnswersIsRefused) {
  internal::ContentPiece piece = Piece(file_.digest(), false);
  piece.set_bytes(std::string((256 << 20) + 1, 'x'));
  EXPECT_EQ(receiver_.Push(piece).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tessera::server
