// Callboard for C++17 and later: callboard.h and callboard_dlpack.h with owners, spans and types of rows. This header is
// the one to include; link libcallboard. A program that calls what is for memory of GPUs, cuda_enable and others, links
// libcallboard_cuda as well.
//
//     callboard::stage stage = callboard::stage::connect();
//     callboard::query robots = stage.query({"/World/Robot3", "/World/Robot7"});
//
//     callboard::session session = stage.map<point>(robots, "position", callboard::next_ordinal);
//     while (auto group = session.next())
//         for (point &p : group->rows<point>())
//             p = {1, 2, 3};
//     session.unmap(CBD_FLAG_SEAL).wait();
//
//     callboard::read read = stage.read(robots, {"position"});
//     while (auto group = read.next())
//         for (std::size_t i = 0; i < group->prims().size(); i++)
//             use(group->prims()[i], group->row<point>(i));
//
// Each class owns one handle of C and gives it back; it moves and does not copy, and an empty one (default-made, moved
// from) may only be assigned to and destroyed. get() is the handle for what is not wrapped here. What the calls mean,
// their errors, and which thread may call what stand in callboard.h: nothing here adds to that.
//
// A call that fails throws callboard::error. With CALLBOARD_NO_EXCEPTIONS, and where the compiler has none, the same
// calls return callboard::result<T>, which is T or an error, and is asked before it is used. Both may be in one program.
#ifndef CALLBOARD_HPP
#define CALLBOARD_HPP

#include "callboard/cuda.hpp"    // cuda_enable, cuda_stream, cuda_memory
#include "callboard/dlpack.hpp"  // tensors to and from other libraries
#include "callboard/error.hpp"   // error, result, names, ordinal
#include "callboard/library.hpp" // versions, log_handler
#include "callboard/map.hpp"     // session, group, claimed_group
#include "callboard/query.hpp"   // op, filter, query, list, events
#include "callboard/read.hpp"    // read, read_group, pin, snapshot, cursor
#include "callboard/rows.hpp"    // row_type, tensor_of, schema_of
#include "callboard/span.hpp"
#include "callboard/stage.hpp"
#include "callboard/write.hpp" // batch

#undef CALLBOARD_TRY
#undef CALLBOARD_FAIL

#endif
