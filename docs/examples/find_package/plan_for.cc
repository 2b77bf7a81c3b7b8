// plan_for PROFILE DEVICES: the best plan for so many devices with links of 10 Gbit/s between them, on
// standard output.
#include <exception>
#include <iostream>
#include <string>

#include "graph/document.h"
#include "optimizer/plan/optimizer.h"

int main(int argc, char** argv) try {
  if (argc != 3) return 2;
  const auto profile = pipewright::read_document<pipewright::Profile>(argv[1]);
  const auto topology =
      pipewright::flat_topology(std::stol(argv[2]), /*bandwidth=*/1.25e9, /*latency=*/50e-6, /*memory=*/0);
  std::cout << pipewright::document_text(pipewright::make_plan(profile, topology, {}));
} catch (const std::exception& error) {
  std::cerr << "plan_for: error: " << error.what() << "\n";
  return 1;
}
