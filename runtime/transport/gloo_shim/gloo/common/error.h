// Stand-in, see gloo_shim/README.md.
#pragma once
