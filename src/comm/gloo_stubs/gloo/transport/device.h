// See gloo/algorithm.h: only pointers to these are held.
#pragma once

namespace gloo::transport {
class Device;
class UnboundBuffer;
}  // namespace gloo::transport
