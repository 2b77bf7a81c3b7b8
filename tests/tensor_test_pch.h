// The same of those that use tensors.
#pragma once
#include "cmake/tensor_pch.h"
#include "tests/test_pch.h"
