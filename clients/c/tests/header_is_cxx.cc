// The public headers are C++ as well, and callboard_dlpack.h goes before the standard's own header and behind it: this
// only has to compile.
#include "callboard_dlpack.h"

#include "standin_dlpack.h"

#include "callboard_dlpack.h"

#ifndef CALLBOARD_DLPACK_CHECKED
#error "the layouts were not compared"
#endif

int main()
{
    cbd_write_options options = cbd_write_options_default();
    cbd_error error;
    error.status = CBD_STATUS_OK;
    DLManagedTensor *managed = nullptr;
    cbd_tensor tensor;
    if (cbd_dlpack_import(managed, &tensor, &error) != CBD_STATUS_OK)
        return 1;
    return options.count == CBD_ALL ? static_cast<int>(error.status) : 1;
}
