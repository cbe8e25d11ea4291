package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/require"
)

func describeOf(identity Identity) func(context.Context, DescribeRequest) (*Description, *RPCError) {
	return func(_ context.Context, r DescribeRequest) (*Description, *RPCError) {
		for _, name := range r.Attributes {
			if name != "pose" {
				return nil, &RPCError{CodeNotFound, fmt.Sprintf("no attribute %q:\nexpected pose", name)}
			}
		}
		return &Description{Source: identity.Source(7), BrokerVersion: identity.Version, Floor: 1 << 63,
			Attributes: []AttributeDescription{{Name: "pose", Ordinals: []Span{{1, 4}}, RowShape: []uint64{480, 640, 3}}},
			Counters:   map[string]Number{"commits": 1 << 60}}, nil
	}
}

func startService(t *testing.T, s *Server, identity Identity, timeout time.Duration, extra ...Endpoint) *Service {
	t.Helper()
	service, err := NewService(s.Requests(), ServiceOptions{Identity: identity, Timeout: timeout,
		Endpoints: append([]Endpoint{DescribeEndpoint(describeOf(identity))}, extra...),
		Stats:     func() map[string]any { return map[string]any{"epoch": "7"} }})
	require.NoError(t, err)
	require.NoError(t, s.Requests().Flush())
	t.Cleanup(func() { require.NoError(t, service.Stop()) })
	return service
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func testSubjects(t *testing.T, identity Identity) Subjects {
	subjects, err := NewSubjects(identity.Host, identity.Stage)
	require.NoError(t, err)
	return subjects
}

func TestObserverDescribes(t *testing.T) {
	s := startServer(t)
	startService(t, s, testIdentity, 0)
	c, _ := connect(t, s.Info(), RoleObserver)
	var d Description
	require.NoError(t, Request(within(t), c, testSubjects(t, testIdentity).Describe(), DescribeRequest{Attributes: []string{"pose"}}, &d))
	require.Equal(t, uint64(7), d.Epoch)
	require.Equal(t, uint64(1<<63), d.Floor)
	require.Equal(t, testIdentity.Broker, d.Broker)
	require.Equal(t, []Span{{1, 4}}, d.Attributes[0].Ordinals)
	require.Equal(t, Number(1<<60), d.Counters["commits"])

	var refused *RPCError
	require.True(t, errors.As(Request(within(t), c, testSubjects(t, testIdentity).Describe(), DescribeRequest{Attributes: []string{"mass"}}, &d), &refused))
	require.Equal(t, &RPCError{CodeNotFound, `no attribute "mass": expected pose`}, refused, "a line break would break the header")
}

// L5 and facts: with the micro default, a queue group, a request for one host is answered by another.
func TestTwoBrokersAnswerTheSharedSubjectBothAndTheirOwnAlone(t *testing.T) {
	s := startServer(t)
	other := testIdentity
	other.Host = "node8"
	startService(t, s, testIdentity, 0)
	startService(t, s, other, 0)
	c, _ := connect(t, s.Info(), RoleObserver)
	for range 10 {
		var d Description
		require.NoError(t, Request(within(t), c, testSubjects(t, other).Describe(), struct{}{}, &d))
		require.Equal(t, "node8", d.Host)
	}
	hosts := map[string]bool{}
	for _, data := range askAll(t, c, SubjectDescribeAll, 2) {
		var d Description
		require.NoError(t, json.Unmarshal(data, &d))
		hosts[d.Host] = true
	}
	require.Equal(t, map[string]bool{"node7": true, "node8": true}, hosts)
}

func askAll(t *testing.T, c *nats.Conn, subject string, n int) [][]byte {
	inbox, err := c.SubscribeSync(c.NewInbox())
	require.NoError(t, err)
	defer func() { _ = inbox.Unsubscribe() }()
	require.NoError(t, c.PublishRequest(subject, inbox.Subject, nil))
	var answers [][]byte
	for range n {
		m, err := inbox.NextMsg(patience)
		require.NoError(t, err)
		answers = append(answers, m.Data)
	}
	return answers
}

// What `nats micro ls`, `info` and `stats` ask, as an observer may.
func TestMicroDiscovery(t *testing.T) {
	s := startServer(t)
	startService(t, s, testIdentity, 0)
	c, _ := connect(t, s.Info(), RoleObserver)
	for range 2 {
		var d Description
		require.NoError(t, Request(within(t), c, testSubjects(t, testIdentity).Describe(), struct{}{}, &d))
	}
	var ping micro.Ping
	require.NoError(t, json.Unmarshal(askAll(t, c, "$SRV.PING", 1)[0], &ping))
	require.Equal(t, "callboard", ping.Name)
	require.Equal(t, "0.1.0", ping.Version)

	var info micro.Info
	require.NoError(t, json.Unmarshal(askAll(t, c, "$SRV.INFO.callboard", 1)[0], &info))
	require.Equal(t, map[string]string{"host": "node7", "stage": "default", "generation": "1152921504606846976",
		"broker": "18446744073709551615", "protocol": "1"}, info.Metadata)
	require.Len(t, info.Endpoints, 2)
	for _, e := range info.Endpoints {
		require.Empty(t, e.QueueGroup)
		require.True(t, json.Valid([]byte(e.Metadata["schema"])))
		require.NotEmpty(t, e.Metadata["doc"])
	}
	require.Equal(t, "callboard.node7.default.rpc.describe", info.Endpoints[0].Subject)
	require.Equal(t, "callboard.rpc.describe", info.Endpoints[1].Subject)

	var stats micro.Stats
	require.Eventually(t, func() bool { // a request is counted after its answer was sent
		require.NoError(t, json.Unmarshal(askAll(t, c, "$SRV.STATS.callboard."+ping.ID, 1)[0], &stats))
		return stats.Endpoints[0].NumRequests >= 2
	}, patience, time.Millisecond)
	require.Equal(t, 2, stats.Endpoints[0].NumRequests)
	require.JSONEq(t, `{"epoch":"7"}`, string(stats.Endpoints[0].Data))
}

// Every sort of garbage gets an error that says what was expected, and the service goes on.
func TestGarbageRequestsGetPreciseErrors(t *testing.T) {
	s := startServer(t)
	untyped := Endpoint{Name: "query", Handler: func(context.Context, []byte) (any, *RPCError) { return struct{}{}, nil }}
	startService(t, s, testIdentity, 0, untyped)
	c, _ := connect(t, s.Info(), RoleObserver)
	stage := testSubjects(t, testIdentity)
	for _, row := range []struct{ subject, request, code, text string }{
		{stage.Describe(), "hello", CodeBadRequest, `request begins with 'h': expected a JSON object or nothing`},
		{stage.Describe(), "\x00\xff", CodeBadRequest, `request begins with '\x00'`},
		{stage.Describe(), "[]", CodeBadRequest, `request begins with '['`},
		{stage.Describe(), "null", CodeBadRequest, `request begins with 'n'`},
		{stage.Describe(), `{"attributes":`, CodeBadRequest, "it ends after 14 bytes inside the object"},
		{stage.Describe(), `{"attributes" 1}`, CodeBadRequest, "request is not JSON: invalid character '1' after object key at byte 15"},
		{stage.Describe(), `{"attributes":"pose"}`, CodeBadRequest, `field "attributes" is a JSON string: expected []string`},
		{stage.Describe(), `{"attribute":["pose"]}`, CodeBadRequest, `unknown field "attribute"`},
		{stage.Describe(), `{}{}`, CodeBadRequest, "goes on after the JSON object"},
		{stage.Describe(), `{"attributes":["` + strings.Repeat("x", MaxRequest) + `"]}`, CodeTooLarge, "expected at most 65536"},
		{stage.Describe(), strings.Repeat("[", 60000), CodeBadRequest, `request begins with '['`},
		{stage.Query(), "garbage", CodeBadRequest, "expected a JSON object"},
		{SubjectDescribeAll, "garbage", CodeBadRequest, "expected a JSON object"},
	} {
		reply, err := c.RequestWithContext(within(t), row.subject, []byte(row.request))
		require.NoError(t, err)
		require.Equal(t, row.code, reply.Header.Get(micro.ErrorCodeHeader), "%.60s", row.request)
		require.Contains(t, reply.Header.Get(micro.ErrorHeader), row.text, "%.60s", row.request)
		var body RPCError
		require.NoError(t, json.Unmarshal(reply.Data, &body))
		require.Equal(t, row.code, body.Code)
		require.Contains(t, body.Text, row.text)
	}
	for _, fine := range []string{"", "  ", "{}", " {} \n"} {
		reply, err := c.RequestWithContext(within(t), stage.Describe(), []byte(fine))
		require.NoError(t, err)
		require.Empty(t, reply.Header.Get(micro.ErrorHeader), fine)
	}
}

// An observer may publish a request, and chooses its reply subject: the broker must not speak there in its own name.
func TestForgedReplySubjectDoesNotBecomeAnEvent(t *testing.T) {
	s := startServer(t)
	service := startService(t, s, testIdentity, 0)
	observer, _ := connect(t, s.Info(), RoleObserver)
	full, _ := connect(t, s.Info(), RoleFull)
	stage := testSubjects(t, testIdentity)
	events := make(chan string, 4)
	_, err := Subscribe(full, stage.Commit(), func(string, []byte) { events <- "forged" })
	require.NoError(t, err)
	require.NoError(t, observer.PublishRequest(stage.Describe(), stage.Commit(), nil))
	require.NoError(t, observer.PublishRequest("$SRV.PING", stage.Commit(), nil)) // answered by micro itself: the role stops it
	askAll(t, observer, "$SRV.PING", 1)
	require.Eventually(t, func() bool { return service.Refused() == 1 }, patience, time.Millisecond)
	require.NoError(t, s.Requests().Flush())
	require.NoError(t, full.Flush())
	require.Empty(t, events)
}

// A handler that waits for a stuck stage loop costs its caller a timeout, its endpoint a bounded number of goroutines, and
// other endpoints nothing.
func TestStuckHandlerTimesOutAndIsBounded(t *testing.T) {
	s := startServer(t)
	release := make(chan struct{})
	defer close(release)
	stuck := Endpoint{Name: "read", Handler: func(context.Context, []byte) (any, *RPCError) { <-release; return nil, nil }}
	startService(t, s, testIdentity, 20*time.Millisecond, stuck)
	c, _ := connect(t, s.Info(), RoleObserver)
	stage := testSubjects(t, testIdentity)
	for i := range maxRunning + 2 {
		var refused *RPCError
		require.True(t, errors.As(Request(within(t), c, stage.Read(), struct{}{}, nil), &refused))
		if i < maxRunning {
			require.Equal(t, &RPCError{CodeTimeout, "read had no answer within 20ms"}, refused)
		} else {
			require.Equal(t, CodeBusy, refused.Code)
		}
	}
	var d Description
	require.Eventually(t, func() bool { // the 20 ms are every endpoint's, and a machine may be busy for so long
		return Request(within(t), c, stage.Describe(), struct{}{}, &d) == nil
	}, patience, time.Millisecond)
}

func TestAnswerLargerThanNATSTakesIsAnError(t *testing.T) {
	s := startServer(t)
	startService(t, s, testIdentity, 0, Endpoint{Name: "read", Handler: func(context.Context, []byte) (any, *RPCError) {
		return strings.Repeat("x", 2<<20), nil
	}})
	c, _ := connect(t, s.Info(), RoleObserver)
	var refused *RPCError
	require.True(t, errors.As(Request(within(t), c, testSubjects(t, testIdentity).Read(), struct{}{}, nil), &refused))
	require.Equal(t, CodeTooLarge, refused.Code)
	require.Contains(t, refused.Text, "2097154 bytes")
}

func TestEndpointTableIsChecked(t *testing.T) {
	s := startServer(t)
	for text, endpoint := range map[string]Endpoint{
		`endpoint "write" has no subject`: {Name: "write", Handler: func(context.Context, []byte) (any, *RPCError) { return nil, nil }},
		`endpoint "read" has no handler`:  {Name: "read"},
	} {
		_, err := NewService(s.Requests(), ServiceOptions{Identity: testIdentity, Endpoints: []Endpoint{endpoint}})
		require.ErrorContains(t, err, text)
	}
	bad := testIdentity
	bad.Version = "one"
	_, err := NewService(s.Requests(), ServiceOptions{Identity: bad})
	require.ErrorContains(t, err, "starting the NATS service")
}
