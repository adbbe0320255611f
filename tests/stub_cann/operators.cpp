// libopapi.so: the presence of aclnnForeachCopy opens torch_npu's way to the batch copy. Operators
// themselves do not exist here and say so; the tests' dispatch mode computes on the host instead.
#include "stub.h"

STUB_API int stub_missing(const char* name);

STUB_API int aclnnForeachCopyGetWorkspaceSize(...) { return stub_missing("aclnnForeachCopyGetWorkspaceSize"); }
STUB_API int aclnnForeachCopy(...) { return stub_missing("aclnnForeachCopy"); }
