package control

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Options say which NATS a broker uses.
type Options struct {
	Identity Identity

	// Embedded server. Host is 127.0.0.1 unless given; any other address sends credentials over a network in the clear.
	// Port 0 takes a free one.
	Host string
	Port int

	// External, if set, is used instead of an embedded server.
	External *External

	// Log gets what the server and the connections complain about, at most 10 lines a second. nil: nothing.
	Log *slog.Logger
}

// External is a NATS server or cluster that somebody else runs.
type External struct {
	URL      string     // nats://host:port or tls://host:port, several separated by commas
	Full     Credential // required: the broker's own, and that of this user's processes
	Observer Credential // optional: handed to observers through the runtime file; its rights are the operator's to set
}

const (
	readyWait       = 5 * time.Second
	maxPending      = 8 << 20 // bytes that one slow subscriber can hold of the broker's memory
	maxConnections  = 1024
	flusherTimeout  = 500 * time.Millisecond // a frozen server holds a publish no longer than this
	connectTimeout  = 2 * time.Second
	maxReconnectGap = 2 * time.Second
)

// Server is a broker's NATS: an embedded server or an external one, and two connections to it.
type Server struct {
	embedded *server.Server // nil: external
	events   *nats.Conn
	requests *nats.Conn
	info     RuntimeInfo
}

// Start starts or connects. An external server that is down is not an error: it is dialled until it comes. A taken port,
// missing credentials and an external server that requires none are.
func Start(options Options) (*Server, error) {
	if _, err := NewSubjects(options.Identity.Host, options.Identity.Stage); err != nil {
		return nil, fmt.Errorf("starting NATS: %w", err)
	}
	s := &Server{info: RuntimeInfo{
		Version: RuntimeVersion, Host: options.Identity.Host, Stage: options.Identity.Stage, Generation: options.Identity.Generation,
	}}
	log := newQuietLog(options.Log)
	connect := s.connectExternal
	if options.External == nil {
		connect = s.startEmbedded
	}
	if err := connect(options, log); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Server) startEmbedded(options Options, log *quietLog) error {
	host, port := options.Host, options.Port
	if host == "" {
		host = "127.0.0.1"
	}
	if port < 0 || port > 65535 {
		return fmt.Errorf("starting embedded NATS: port %d: expected 1 to 65535, or 0 for a free one", port)
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	gate, credentials := newGate()
	embedded, err := server.NewServer(&server.Options{
		ServerName: "callboard-" + options.Identity.Stage,
		Host:       host, Port: port,
		NoSigs:                     true, // else it takes the process's signals and exits
		NoFastProducerStall:        true, // a slow subscriber loses messages instead of holding up the publisher
		NoSystemAccount:            true,
		MaxPending:                 maxPending,
		MaxConn:                    maxConnections,
		CustomClientAuthentication: gate,
	})
	if err != nil {
		return fmt.Errorf("starting embedded NATS on %s:%d: %w", host, options.Port, err)
	}
	// Start returns nothing; what goes wrong, a taken port above all, is told to the logger alone.
	logger := &serverLog{quiet: log, fatal: make(chan string, 1)}
	embedded.SetLoggerV2(logger, false, false, false)
	s.embedded = embedded
	embedded.Start()
	if err := waitReady(embedded, logger, host, options.Port); err != nil {
		return err
	}
	_, actual, err := net.SplitHostPort(embedded.Addr().String())
	if err != nil {
		return fmt.Errorf("reading the address of embedded NATS: %w", err)
	}
	s.info.URL = "nats://" + net.JoinHostPort(host, actual)
	s.info.Full, s.info.Observer = credentials[RoleFull], credentials[RoleObserver]
	return s.connect(s.info.URL, credentials[roleEvents], credentials[roleService], log, nats.InProcessServer(embedded))
}

func waitReady(embedded *server.Server, logger *serverLog, host string, port int) error {
	address := net.JoinHostPort(host, strconv.Itoa(port))
	deadline := time.Now().Add(readyWait)
	for {
		select {
		case text := <-logger.fatal:
			return fmt.Errorf("starting embedded NATS on %s: %s; choose another port, or 0 for a free one", address, text)
		default:
		}
		if embedded.ReadyForConnections(50 * time.Millisecond) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("starting embedded NATS on %s: not ready after %v", address, readyWait)
		}
	}
}

func (s *Server) connectExternal(options Options, log *quietLog) error {
	url, inURL, err := splitURL(options.External.URL)
	if err != nil {
		return fmt.Errorf("connecting to external NATS: %w", err)
	}
	full := options.External.Full
	if full.empty() {
		inURL.CAFile = full.CAFile
		full = inURL
	}
	if full.empty() {
		return fmt.Errorf("connecting to external NATS at %s: no credentials: give user and password, a token, a credentials file, an nkey file or a certificate", url)
	}
	s.info.URL, s.info.Full, s.info.Observer = url, full, options.External.Observer
	if !s.info.Observer.empty() && s.info.Observer.InboxPrefix == "" {
		s.info.Observer.InboxPrefix = ObserverInbox
	}
	// It is asked once before: who is refused now will be refused later. What keeps trying would not tell.
	probe, err := dial(url, full, nats.Name("callboard broker "+s.info.Stage))
	// A server that refuses a certificate may hang up before its reason is read: it is asked for that again.
	for try := 0; try < probeTries && full.CertFile != "" && err != nil && hungUp(err); try++ {
		probe, err = dial(url, full, nats.Name("callboard broker "+s.info.Stage))
	}
	if err == nil {
		probe.Close()
	} else if down(err) {
		log.warn("external NATS at " + url + " is out of reach and will be dialled until it comes: " + err.Error())
	} else {
		return fmt.Errorf("connecting to external NATS at %s: %w; check the credentials, and the certificates of a tls:// server", url, err)
	}
	// An operator may put right what a server that was restarted refuses.
	if err := s.connect(url, full, full, log, nats.RetryOnFailedConnect(true), nats.IgnoreAuthErrorAbort()); err != nil {
		return err
	}
	if s.events.IsConnected() && !s.events.AuthRequired() && full.CertFile == "" {
		return fmt.Errorf("connecting to external NATS at %s: the server lets anybody in; give it users before a stage announces itself there", url)
	}
	return nil
}

const probeTries = 20

func (s *Server) connect(url string, events, requests Credential, log *quietLog, extra ...nats.Option) error {
	for _, c := range []struct {
		name       string
		credential Credential
		into       **nats.Conn
	}{{"events", events, &s.events}, {"requests", requests, &s.requests}} {
		connection, err := dial(url, c.credential, append(extra,
			nats.Name(fmt.Sprintf("callboard broker %s %s", s.info.Stage, c.name)),
			nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
				log.warn("NATS connection for " + c.name + ": " + err.Error())
			}),
			nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
				if err != nil {
					log.warn("NATS connection for " + c.name + " lost: " + err.Error())
				}
			}),
		)...)
		if err != nil {
			return fmt.Errorf("connecting the broker to NATS at %s: %w", url, err)
		}
		*c.into = connection
	}
	return nil
}

// Info is what the runtime file says.
func (s *Server) Info() RuntimeInfo { return s.info }

// Events is the connection for an Announcer.
func (s *Server) Events() *nats.Conn { return s.events }

// Requests is the connection for a Service.
func (s *Server) Requests() *nats.Conn { return s.requests }

// Connected says whether NATS is in reach now; an embedded server always is.
func (s *Server) Connected() bool { return s.events.IsConnected() && s.requests.IsConnected() }

// Close sends what is under way, within a bound, and ends the connections and the embedded server. Close the Announcer
// and stop the Service before. It may be called twice.
func (s *Server) Close() error {
	var failures []error
	for _, connection := range []*nats.Conn{s.events, s.requests} {
		if connection == nil || connection.IsClosed() {
			continue
		}
		if connection.IsConnected() {
			if err := connection.FlushTimeout(flusherTimeout); err != nil {
				failures = append(failures, fmt.Errorf("sending the last NATS messages: %w", err))
			}
		}
		connection.Close()
	}
	if s.embedded != nil {
		s.embedded.Shutdown()
		s.embedded.WaitForShutdown()
	}
	return errors.Join(failures...)
}
