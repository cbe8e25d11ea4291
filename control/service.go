package control

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// ServiceName is the name under which `nats micro` finds every broker.
const ServiceName = "callboard"

// Limits of requests where the options leave them open.
const (
	MaxRequest            = 64 << 10 // bytes
	DefaultHandlerTimeout = 2 * time.Second
	maxRunning            = 4   // handlers of one endpoint that have outlived their timeout
	maxWaiting            = 256 // requests of one endpoint
)

// Endpoint is one row of the service's table.
type Endpoint struct {
	Name    string // describe, query, read or floor
	Doc     string // one line
	Schema  string // JSON schema of the request
	Handler Handler
}

// ServiceOptions describe a Service.
type ServiceOptions struct {
	Identity  Identity
	Endpoints []Endpoint
	Timeout   time.Duration         // for one handler; 0: 2 s
	Stats     func() map[string]any // shown by `nats micro stats` beside the standard figures; may be nil
}

// Service answers requests. Requests of one endpoint run one after another, as NATS delivers them.
type Service struct {
	connection *nats.Conn
	service    micro.Service
	timeout    time.Duration
	refused    atomic.Uint64
}

// NewService registers the endpoints; they answer from now on. No endpoint has a queue group: shared memory is local to a
// host, so a request must reach the broker it names and no other.
func NewService(connection *nats.Conn, options ServiceOptions) (*Service, error) {
	subjects, err := NewSubjects(options.Identity.Host, options.Identity.Stage)
	if err != nil {
		return nil, fmt.Errorf("starting the NATS service: %w", err)
	}
	s := &Service{connection: connection, timeout: options.Timeout}
	if s.timeout <= 0 {
		s.timeout = DefaultHandlerTimeout
	}
	config := micro.Config{
		Name:        ServiceName,
		Version:     options.Identity.Version,
		Description: "shared-memory tensor exchange: state of one stage",
		Metadata: map[string]string{
			"host":       options.Identity.Host,
			"stage":      options.Identity.Stage,
			"generation": strconv.FormatUint(options.Identity.Generation, 10),
			"broker":     strconv.FormatUint(options.Identity.Broker, 10),
			"protocol":   strconv.Itoa(EventVersion),
		},
		QueueGroupDisabled: true,
	}
	if options.Stats != nil {
		config.StatsHandler = func(*micro.Endpoint) any { return options.Stats() }
	}
	if s.service, err = micro.AddService(connection, config); err != nil {
		return nil, fmt.Errorf("starting the NATS service: %w", err)
	}
	for _, endpoint := range options.Endpoints {
		if err := s.add(subjects, endpoint); err != nil {
			_ = s.service.Stop()
			return nil, fmt.Errorf("starting the NATS service: %w", err)
		}
	}
	// Until the server has the subscriptions a request would be told that nobody is there. An external server that is
	// out of reach gets them when it comes back.
	_ = connection.FlushTimeout(subscribeWait)
	return s, nil
}

const subscribeWait = time.Second

func (s *Service) add(subjects Subjects, endpoint Endpoint) error {
	if endpoint.Handler == nil {
		return fmt.Errorf("endpoint %q has no handler", endpoint.Name)
	}
	type place struct{ name, subject string }
	places := map[string][]place{
		"describe": {{"describe", subjects.Describe()}, {"describe_all", SubjectDescribeAll}},
		"query":    {{"query", subjects.Query()}},
		"read":     {{"read", subjects.Read()}},
		"floor":    {{"floor", subjects.Floor()}},
	}[endpoint.Name]
	if places == nil {
		return fmt.Errorf("endpoint %q has no subject: expected describe, query, read or floor", endpoint.Name)
	}
	for _, p := range places {
		err := s.service.AddEndpoint(p.name, s.serve(endpoint),
			micro.WithEndpointSubject(p.subject),
			micro.WithEndpointMetadata(map[string]string{"doc": endpoint.Doc, "schema": endpoint.Schema}),
			micro.WithEndpointPendingLimits(maxWaiting, maxWaiting*MaxRequest))
		if err != nil {
			return fmt.Errorf("endpoint %q on %s: %w", p.name, p.subject, err)
		}
	}
	return nil
}

func (s *Service) serve(endpoint Endpoint) micro.HandlerFunc {
	var running atomic.Int32
	return func(r micro.Request) {
		// A reply subject is the caller's choice; the answer to a forged one would look like an event.
		if !strings.HasPrefix(r.Reply(), "_INBOX.") {
			s.refused.Add(1)
			return
		}
		response, err := s.answer(endpoint, &running, r.Data())
		if err == nil {
			failure := r.Respond(response)
			if failure == nil {
				return
			}
			err = &RPCError{CodeTooLarge, fmt.Sprintf("the answer has %d bytes, this NATS server takes %d (%v): ask for less", len(response), s.connection.MaxPayload(), failure)}
		}
		body, _ := json.Marshal(err) // two strings
		_ = r.Error(err.Code, oneLine(err.Text), body)
	}
}

func (s *Service) answer(endpoint Endpoint, running *atomic.Int32, request []byte) ([]byte, *RPCError) {
	if len(request) > MaxRequest {
		return nil, &RPCError{CodeTooLarge, fmt.Sprintf("request has %d bytes: expected at most %d", len(request), MaxRequest)}
	}
	var object map[string]json.RawMessage
	if err := decodeRequest(request, &object); err != nil {
		return nil, err
	}
	if running.Add(1) > maxRunning {
		running.Add(-1)
		return nil, &RPCError{CodeBusy, fmt.Sprintf("%d earlier %s requests are still being worked on: try again later", maxRunning, endpoint.Name)}
	}
	type outcome struct {
		response any
		err      *RPCError
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	finished := make(chan outcome, 1)
	go func() {
		defer running.Add(-1)
		response, err := endpoint.Handler(ctx, request)
		finished <- outcome{response, err}
	}()
	select {
	case o := <-finished:
		if o.err != nil {
			return nil, o.err
		}
		data, err := json.Marshal(o.response)
		if err != nil {
			panic(fmt.Sprintf("control: answer of %s (%T) has no JSON form: %v", endpoint.Name, o.response, err))
		}
		return data, nil
	case <-ctx.Done():
		return nil, &RPCError{CodeTimeout, fmt.Sprintf("%s had no answer within %v", endpoint.Name, s.timeout)}
	}
}

// oneLine keeps a text from breaking the header it goes into.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
}

// Refused counts requests that got no answer because their reply subject was no inbox.
func (s *Service) Refused() uint64 { return s.refused.Load() }

// Stop ends the service; requests under way are still answered. It may be called twice.
func (s *Service) Stop() error { return s.service.Stop() }
