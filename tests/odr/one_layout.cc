#include <string>

namespace tessera::odr {

struct Twice {
  std::string key;
  int value = 0;
  ~Twice() {}
};

int OfOneLayout() { return Twice().value; }

}  // namespace tessera::odr
