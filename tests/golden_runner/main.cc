#include "tests/golden_runner/golden_case.h"

int main(int argc, char** argv) { return tessera::golden::Main(argc, argv); }
