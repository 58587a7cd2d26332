// Nothing of this header is needed; see gloo/context.h.
#pragma once
