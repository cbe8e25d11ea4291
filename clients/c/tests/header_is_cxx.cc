// The public header is C++ as well: this only has to compile.
#include "callboard.h"

int main()
{
    cbd_write_options options = cbd_write_options_default();
    cbd_error error;
    error.status = CBD_STATUS_OK;
    return options.count == CBD_ALL ? static_cast<int>(error.status) : 1;
}
