#include <string>

namespace tessera::odr {

struct Twice {
  std::string name;
  double value = 0;
  ~Twice() {}
};

double OfAnotherLayout() { return Twice().value; }

}  // namespace tessera::odr
