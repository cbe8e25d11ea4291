package broker

import (
	"cmp"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"callboard/cudaipc"
	"callboard/protocol"
)

// askDevice sends a DeviceRequest and gives the reply.
func (p *peer) askDevice(sort, index uint32, segment uint64) (reply protocol.DeviceReply) {
	p.t.Helper()
	request := protocol.DeviceRequest{Header: header(protocol.MessageDeviceRequest), Sort: sort, Index: index, Segment: segment}
	request.Header.SizeBytes = uint32(len(encode(&request)))
	require.NoError(p.t, p.conn.Send(encode(&request)))
	var buf [protocol.MessageBytesMax]byte
	n, files, err := p.conn.RecvWithin(10*time.Second, buf[:])
	require.NoError(p.t, err)
	require.Empty(p.t, files)
	reply, ok := decode[protocol.DeviceReply](buf[:n], 0)
	require.True(p.t, ok)
	require.Equal(p.t, sort, reply.Sort)
	return reply
}

// A broker without devices says so by a status, and in words to an operation; the session goes on.
func TestRequestsForDevicesOfABrokerWithoutAny(t *testing.T) {
	p := attachPeer(t, startBroker(t, nil))
	require.Zero(t, p.hello.DeviceCount)
	require.Zero(t, p.hello.Features&protocol.FeatureDevice)
	require.Equal(t, protocol.StatusNotSupported, protocol.Status(p.askDevice(protocol.DeviceInfo, 0, 0).Status))
	require.Equal(t, protocol.StatusNotFound, protocol.Status(p.askDevice(protocol.DeviceArena, 0, 1).Status))
	require.Equal(t, protocol.StatusNotFound, protocol.Status(p.askDevice(protocol.DeviceEvent, 0, 0).Status))
	q := p.query("/a")
	schema := float32s
	schema.DeviceType = 2
	_, text := p.do(protocol.StatusNotSupported, protocol.SubmissionEntry{Opcode: protocol.OpMap, Handle: q, Ordinal: 1}, mapArguments("x", schema))
	require.Contains(t, string(text), "serve --gpu off")
	p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpArenaClosed, Value: 7}, nil)
	_, text = p.do(protocol.StatusInvalidArgument, protocol.SubmissionEntry{Opcode: protocol.OpMirror, Handle: 9, Ordinal: 1, Value: 1}, nil)
	require.NotEmpty(t, text)
	_, text = p.do(protocol.StatusInvalidArgument, protocol.SubmissionEntry{Opcode: protocol.OpMirror, Handle: 9, Ordinal: 1, Flags: 2}, nil)
	require.Contains(t, string(text), "flags are 0x2")

	// An event is of device memory: a group on the host has none.
	done, _ := p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpMap, Handle: q, Ordinal: 1}, mapArguments("x", float32s))
	args := protocol.UnmapArguments{Selection: protocol.Selection{Count: protocol.All}, EventUsed: 1}
	_, text = p.do(protocol.StatusInvalidArgument, protocol.SubmissionEntry{Opcode: protocol.OpUnmapGroup, Handle: done.Handle}, encode(&args))
	require.Contains(t, string(text), "its rows lie in host memory")
	_, text = p.do(protocol.StatusInvalidArgument, protocol.SubmissionEntry{Opcode: protocol.OpUnmapAttribute, Handle: done.Handle}, encode(&args))
	require.Contains(t, string(text), "its rows lie in host memory")
	args.EventUsed = 0
	_, text = p.do(protocol.StatusInvalidArgument, protocol.SubmissionEntry{Opcode: protocol.OpUnmapAttribute, Handle: done.Handle, Flags: protocol.FlagAbort}, encode(&args))
	require.Contains(t, string(text), "still mapped, and committed")
	p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpUnmapAttribute, Handle: done.Handle}, encode(&args))
	p.do(protocol.StatusInvalidHandle, protocol.SubmissionEntry{Opcode: protocol.OpUnmapAttribute, Handle: done.Handle}, nil)
}

// What a probe finds keeps its place: a device that comes later is behind those that were known, and one that the
// operator named has a verdict of its own while it is not there.
func TestProbesAddToWhatIsKnown(t *testing.T) {
	found := func(names ...string) *cudaipc.Report {
		r := &cudaipc.Report{Driver: noDriver{}}
		for i, name := range names {
			r.Devices = append(r.Devices, cudaipc.DeviceReport{DeviceInfo: cudaipc.DeviceInfo{Ordinal: i, Name: name, UUID: cudaipc.UUID{name[0]}}, Verdict: cudaipc.Verdict{Answer: cudaipc.Yes}})
		}
		return r
	}
	names := func(d *devices) (all []string) {
		for _, g := range d.known {
			all = append(all, g.info.Name)
		}
		return all
	}
	all := &devices{}
	all.note(found("b"))
	all.note(found("a", "b"))
	require.Equal(t, []string{"b", "a"}, names(all))
	all.note(found("a"))
	require.Equal(t, cudaipc.No, all.known[0].verdict.Answer, "b is gone")
	require.Equal(t, cudaipc.Yes, all.known[1].verdict.Answer)

	some := &devices{config: GPUConfig{Devices: []string{"1", (cudaipc.UUID{'c'}).String()}}}
	some.note(found("a"))
	require.Equal(t, []string{"", ""}, names(some))
	require.Contains(t, reasonOf(some.known[0].verdict), "there is no device 1; the driver has 1 others")
	some.note(found("a", "b", "c"))
	require.Equal(t, []string{"b", "c"}, names(some))
}

// noDriver is a driver that nobody calls.
type noDriver struct{ cudaipc.Driver }

// What allocates and frees on a device comes one after the other, in the order in which it was handed in.
func TestSerialKeepsItsOrder(t *testing.T) {
	var s serial
	var group sync.WaitGroup
	var got []int
	for i := range 1000 {
		s.do(&group, func() { got = append(got, i) })
	}
	group.Wait()
	require.Len(t, got, 1000)
	for i, n := range got {
		require.Equal(t, i, n)
	}
}

func TestVerdictsOfWhatFailed(t *testing.T) {
	v := verdictOn(&cudaipc.SelfTestError{Step: "exporting", Cause: cudaipc.Cause{Reason: "pid namespaces", Advice: "share one"}, Err: errors.New("201")})
	require.Equal(t, "self-test failed: pid namespaces (exporting: 201): share one", reasonOf(v))
	v = verdictOn(&cudaipc.Error{Code: cudaipc.ErrOutOfMemory, Function: "cuDevicePrimaryCtxRetain"})
	require.Equal(t, cudaipc.ReasonNoMemory, v.Reason)
}

// Rules O2, V7: what the operator left open is a quarter of all memory there is, also when a device comes later; what he
// set stays.
func TestLimitsFollowTheDevicesThatCome(t *testing.T) {
	late := &device{info: cudaipc.DeviceInfo{MemoryBytes: 96 << 20}}
	for _, set := range []uint64{0, 1 << 20} {
		c, err := Config{MemoryBytes: 32 << 20, ShmDir: t.TempDir(), UnsealedBytes: set}.withDefaults()
		require.NoError(t, err)
		c.share(nil)
		require.Equal(t, []uint64{cmp.Or(set, 8<<20), 8 << 20}, []uint64{c.UnsealedBytes, c.PinnedBytes})
		c.share([]*device{late})
		require.Equal(t, []uint64{cmp.Or(set, 32<<20), 32 << 20}, []uint64{c.UnsealedBytes, c.PinnedBytes})
	}
}
