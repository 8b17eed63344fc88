// Stand-ins for Gloo's headers, which c10d's header includes but the PyTorch wheel does not contain. They declare only
// the names that c10d's header mentions. We hold pointers to Gloo's types, and never construct or read them.
#pragma once
