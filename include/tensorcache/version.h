// The version of the library these headers belong to. The build reads it from here.
#pragma once

#define TENSORCACHE_VERSION "0.1.0"
