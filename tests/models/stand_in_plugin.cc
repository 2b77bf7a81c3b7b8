// Stands in for the plug-in where only its loading is tested. With REFUSES it is of another version.
extern "C" void* pipewright_cuda_plugin(int) {
  static int object = 0;
#ifdef REFUSES
  return nullptr;
#else
  return &object;
#endif
}
