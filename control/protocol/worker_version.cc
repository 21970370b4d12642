#include "control/protocol/worker_version.h"

#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/fields/binary_fields.h"
#include "base/files/sha256.h"
#include "control/protocol/commands.h"
#include "control/protocol/frames.h"

namespace tessera::control {
namespace {

template <class... Command>
std::string ProtocolText(const std::tuple<Command...>*) {
  return absl::StrCat(base::FieldsText<CommandFrame>(), base::FieldsText<ReplyFrame>(), base::FieldsText<ErrorReply>(),
                      base::FieldsText<Rows>(),
                      (base::FieldsText<Command>() + base::FieldsText<typename Command::Reply>())...);
}

}  // namespace

std::string WorkerVersion(const std::string& release) {
  base::Sha256 digest;
  digest.Update(ProtocolText(static_cast<const Commands*>(nullptr)));
  return absl::StrCat("tessera ", release, ", control protocol ", digest.Finish().substr(0, 16));
}

}  // namespace tessera::control
