// The consumer's own headers are what it gets, beside TensorCache's of the same names.
#include <config.h>
#include <kernels/rows.h>
#include <status.h>
#include <tensorcache/config.h>
#include <tensorcache/kernels/rows.h>
#include <tensorcache/status.h>
#include <version.h>

static_assert(kHostConfig && kHostRows && kHostStatus && kHostVersion);
static_assert(sizeof(tensorcache::ModelConfig) > 0 && sizeof(tensorcache::Rows<float>) > 0);
