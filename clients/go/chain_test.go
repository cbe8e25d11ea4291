package callboard

import (
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/protocol"
)

// Behaviour 209: the hint of a TIMEOUT is of the operation's own chain.
func TestTheLowestPendingIsOfTheOwnChain(t *testing.T) {
	write := func(handle, at uint64, names ...string) request {
		return request{opcode: protocol.OpWrite, handle: handle, names: names, at: at}
	}
	seal := func(scope, at uint64, names ...string) request {
		return request{opcode: protocol.OpSeal, value: scope, names: names, at: at}
	}
	next := write(7, 0, "x")
	next.flags = protocol.FlagNextOrdinal
	unmap := request{opcode: protocol.OpUnmapGroup, handle: 50, names: []string{"m"}, at: 3}
	other := request{opcode: protocol.OpUnmapAttribute, handle: 51, names: []string{"m"}, at: 2}
	query := request{opcode: protocol.OpQueryFilter, handle: 9}
	for _, test := range []struct {
		what string
		ops  []request // ids from 1; the last one is asked about
		want uint64
	}{
		{"nothing before it", []request{write(7, 1, "x")}, 1},
		{"another attribute", []request{write(7, 1, "unrelated"), write(7, 1, "x")}, 2},
		{"a higher ordinal", []request{write(7, 9, "x"), write(7, 1, "x")}, 2},
		{"the same", []request{write(7, 1, "x"), write(7, 1, "y"), write(7, 1, "x")}, 1},
		{"through a batch", []request{write(7, 1, "x"), write(7, 1, "x", "y"), write(7, 1, "y")}, 1},
		{"an ordinal still to be chosen", []request{write(7, 9, "x"), next}, 1},
		{"a seal of one", []request{write(7, 1, "y"), write(7, 1, "x"), seal(protocol.ScopeInclude, 1, "x")}, 2},
		{"a seal of all", []request{write(7, 2, "y"), write(7, 1, "x"), seal(protocol.ScopeAll, 1)}, 2},
		{"a seal of all but one", []request{write(7, 1, "y"), write(7, 1, "x"), seal(protocol.ScopeExclude, 1, "y")}, 2},
		{"after a seal of all but it", []request{write(7, 1, "z"), seal(protocol.ScopeExclude, 1, "x"), write(7, 2, "x")}, 3},
		{"after a seal of all but another", []request{write(7, 1, "z"), seal(protocol.ScopeExclude, 1, "y"), write(7, 2, "x")}, 1},
		{"the making of its query", []request{write(7, 1, "y"), query, write(9, 1, "x")}, 2},
		{"its session", []request{write(7, 1, "y"), unmap, other, unmap}, 2},
		{"a delete of prims", []request{write(7, 1, "y"), {opcode: protocol.OpDelete, at: 1}, write(7, 1, "x")}, 1},
		{"what changes nothing", []request{write(7, 1, "y"), {opcode: protocol.OpIntern}}, 2},
	} {
		c := &client{ops: map[uint64]*Op{}}
		for i := range test.ops {
			c.ops[uint64(i)+1] = &Op{client: c, id: uint64(i) + 1, request: test.ops[i]}
		}
		require.Equal(t, test.want, c.lowestPending(c.ops[uint64(len(test.ops))]), test.what)
	}
}
