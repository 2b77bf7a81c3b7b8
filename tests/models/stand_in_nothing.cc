// A library that is no plug-in; one that another needs and that is not found.
extern "C" int pipewright_test_nothing() { return 0; }
