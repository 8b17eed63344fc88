// Gloo's headers are not in the wheel, though c10d's name them. These stand-ins declare what c10d's header mentions,
// and nothing else: we hold pointers to Gloo's types, build none of them and look into none.
#pragma once
