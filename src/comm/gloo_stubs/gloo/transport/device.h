// See gloo/algorithm.h. We hold only pointers to these types.
#pragma once

namespace gloo::transport {
class Device;
class UnboundBuffer;
}  // namespace gloo::transport
