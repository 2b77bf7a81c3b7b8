// The same of those that use tensors.
#pragma once
#include "cmake/tensor_pch.h"
#include "cmake/test_pch.h"
