// What most sources include, compiled once.
#pragma once

#include <fmt/format.h>

#include "core/config.h"
#include "core/json.h"
