extern "C" int FakeCudaDependency() { return 0; }
