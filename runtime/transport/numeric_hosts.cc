// getnameinfo() of the whole process, ahead of the C library's: hosts are numbers, no name server is asked.
//
// c10d's sockets write down the name of who is at the other end, for messages that are rarely seen: each
// connection to a store, and each that it accepts, on the one thread that answers all ranks, would ask a name
// server. Where that one answers slowly, or not at all, requests to the store stand still for 5 s and more at
// a time (the C library's time-out), which is longer than ranks wait for last words. /etc/hosts does not
// help: the sockets are of IPv6 and the addresses of IPv4.
//
// A program that links this library defines the symbol, and the dynamic linker gives it to LibTorch.
#include <dlfcn.h>
#include <netdb.h>

extern "C" int getnameinfo(const sockaddr* address, socklen_t size, char* host, socklen_t host_size,
                           char* service, socklen_t service_size, int flags) {
  static auto* const of_c_library =
      reinterpret_cast<decltype(&getnameinfo)>(::dlsym(RTLD_NEXT, "getnameinfo"));
  return of_c_library(address, size, host, host_size, service, service_size, flags | NI_NUMERICHOST);
}
