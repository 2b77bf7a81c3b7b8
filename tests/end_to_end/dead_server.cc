// Preloaded into a program: files below the folder PIPEWRIGHT_TEST_DEAD_FOLDER are on a server that has gone.
// What asks for one of them stands for ever, whatever signals come, as on an NFS mount: from the first look
// at the name, or, with PIPEWRIGHT_TEST_DEAD_AT=read, from the first byte. The name server does not answer
// who asks for the host PIPEWRIGHT_TEST_DEAD_NAME.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

bool below(const char* file) {
  const char* folder = std::getenv("PIPEWRIGHT_TEST_DEAD_FOLDER");
  return folder && file && std::strncmp(file, folder, std::strlen(folder)) == 0;
}

bool dies_at(const char* what) {
  const char* at = std::getenv("PIPEWRIGHT_TEST_DEAD_AT");
  return std::strcmp(at ? at : "name", what) == 0;
}

[[noreturn]] void stand() {
  while (true) ::pause();
}

void name(const char* file) {
  if (dies_at("name") && below(file)) stand();
}

void bytes(int descriptor) {
  if (!dies_at("read")) return;
  char file[4096] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  if (::readlink(link.c_str(), file, sizeof(file) - 1) > 0 && below(file)) stand();
}

template <typename Function>
Function* next(const char* symbol) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, symbol));
}

}  // namespace

extern "C" {

int stat(const char* file, struct stat* status) {
  name(file);
  return next<int(const char*, struct stat*)>("stat")(file, status);
}
int lstat(const char* file, struct stat* status) {
  name(file);
  return next<int(const char*, struct stat*)>("lstat")(file, status);
}
// LibTorch brings std::filesystem for all, made for an older C library.
int __xstat(int, const char* file, struct stat* status) { return stat(file, status); }
int __lxstat(int, const char* file, struct stat* status) { return lstat(file, status); }
int mkdir(const char* file, mode_t mode) {
  name(file);
  return next<int(const char*, mode_t)>("mkdir")(file, mode);
}
DIR* opendir(const char* file) {
  name(file);
  return next<DIR*(const char*)>("opendir")(file);
}
FILE* fopen(const char* file, const char* mode) {
  name(file);
  return next<FILE*(const char*, const char*)>("fopen")(file, mode);
}
FILE* fopen64(const char* file, const char* mode) {
  name(file);
  return next<FILE*(const char*, const char*)>("fopen64")(file, mode);
}
int open(const char* file, int flags, ...) {
  name(file);
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return next<int(const char*, int, ...)>("open")(file, flags, mode);
}
int getaddrinfo(const char* host, const char* service, const addrinfo* hints, addrinfo** found) {
  const char* dead = std::getenv("PIPEWRIGHT_TEST_DEAD_NAME");
  if (dead && host && std::strcmp(host, dead) == 0) stand();
  return next<decltype(getaddrinfo)>("getaddrinfo")(host, service, hints, found);
}
ssize_t read(int descriptor, void* into, size_t count) {
  bytes(descriptor);
  return next<ssize_t(int, void*, size_t)>("read")(descriptor, into, count);
}
ssize_t pread(int descriptor, void* into, size_t count, off_t offset) {
  bytes(descriptor);
  return next<ssize_t(int, void*, size_t, off_t)>("pread")(descriptor, into, count, offset);
}

}  // extern "C"
