package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// Connect connects as a role of the runtime file. The connection is kept up for ever; a broker with an embedded server
// has another port and other credentials after its restart, so read the file again when it stays down.
// Callers that cannot import nats use Subscribe and Request on it.
func Connect(info RuntimeInfo, role Role, extra ...nats.Option) (*nats.Conn, error) {
	var credential Credential
	switch role {
	case RoleFull:
		credential = info.Full
	case RoleObserver:
		credential = info.Observer
	default:
		return nil, fmt.Errorf("connecting to NATS: unknown role %q: expected %q or %q", role, RoleFull, RoleObserver)
	}
	if credential.empty() {
		return nil, fmt.Errorf("connecting to NATS at %s: stage %s has no credential for the role %q", info.URL, info.Stage, role)
	}
	options := append([]nats.Option{nats.Name("callboard " + string(role))}, extra...)
	connection, err := dial(info.URL, credential, options...)
	if err != nil {
		return nil, fmt.Errorf("connecting to NATS at %s as %s: %w; if the broker was restarted, read its runtime file again", info.URL, role, err)
	}
	return connection, nil
}

// dial holds the options that every connection of the project needs.
func dial(url string, credential Credential, extra ...nats.Option) (*nats.Conn, error) {
	options := []nats.Option{
		nats.Timeout(connectTimeout),
		nats.MaxReconnects(-1),    // the default gives up for ever after two minutes
		nats.ReconnectBufSize(-1), // a publish without a connection fails at once; a stale burst is worth nothing
		nats.FlusherTimeout(flusherTimeout),
		nats.CustomReconnectDelay(func(attempts int) time.Duration {
			return min(50*time.Millisecond<<min(attempts, 10), maxReconnectGap)
		}),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // the default prints to stderr
	}
	if credential.InboxPrefix != "" {
		options = append(options, nats.CustomInboxPrefix(credential.InboxPrefix))
	}
	switch {
	case credential.CredentialsFile != "":
		options = append(options, nats.UserCredentials(credential.CredentialsFile))
	case credential.NKeyFile != "":
		option, err := nats.NkeyOptionFromSeed(credential.NKeyFile)
		if err != nil {
			return nil, fmt.Errorf("reading nkey file %s: %w", credential.NKeyFile, err)
		}
		options = append(options, option)
	case credential.Token != "":
		options = append(options, nats.Token(credential.Token))
	case credential.User != "":
		options = append(options, nats.UserInfo(credential.User, credential.Password))
	}
	if credential.CAFile != "" {
		options = append(options, nats.RootCAs(credential.CAFile))
	}
	if credential.CertFile != "" || credential.KeyFile != "" {
		options = append(options, nats.ClientCert(credential.CertFile, credential.KeyFile))
	}
	return nats.Connect(url, append(options, extra...)...)
}

// down tells whether a server was out of reach, so that dialling it again may help: it refused nobody and nothing.
func down(err error) bool {
	var network *net.OpError
	if errors.As(err, &network) {
		return network.Op != "remote error" && network.Op != "local error" // what TLS says of a peer that it refuses
	}
	return errors.Is(err, nats.ErrNoServers) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, io.EOF)
}

// hungUp tells whether a server was reached and ended the connection without a word.
func hungUp(err error) bool {
	var network *net.OpError
	return errors.Is(err, io.EOF) || errors.As(err, &network) && (network.Op == "read" || network.Op == "write")
}

// splitURL takes user and password, or a token, out of a server list, so that they are not printed with the address.
func splitURL(list string) (string, Credential, error) {
	var plain []string
	var credential Credential
	for _, text := range strings.Split(list, ",") {
		text = strings.TrimSpace(text)
		if !strings.Contains(text, "://") {
			text = "nats://" + text
		}
		u, err := url.Parse(text)
		if err != nil || u.Host == "" {
			return "", credential, errors.New("URL is not usable: expected nats://host:port or tls://host:port, several separated by commas")
		}
		if u.User != nil {
			var named bool
			credential.User = u.User.Username()
			if credential.Password, named = u.User.Password(); !named { // as NATS's own clients have it
				credential.User, credential.Token = "", credential.User
			}
			u.User = nil
		}
		plain = append(plain, u.String())
	}
	return strings.Join(plain, ","), credential, nil
}

// Subscribe calls handle with each message on a subject or wildcard, one at a time, on a goroutine of the connection,
// until stop is called. It returns when the server knows of the subscription: what is published afterwards arrives. A
// subscription that the role does not allow is an error.
func Subscribe(connection *nats.Conn, subject string, handle func(subject string, data []byte)) (stop func(), err error) {
	return subscribe(connection, subject, "", handle)
}

// WorkQueue is the NATS queue group of workers that share map sessions: each announcement reaches one of them.
const WorkQueue = "work"

// SubscribeWork is Subscribe in the queue group of workers. Observers may not: they would take announcements away.
func SubscribeWork(connection *nats.Conn, subject string, handle func(subject string, data []byte)) (stop func(), err error) {
	return subscribe(connection, subject, WorkQueue, handle)
}

func subscribe(connection *nats.Conn, subject, queue string, handle func(subject string, data []byte)) (stop func(), err error) {
	subscription, err := connection.QueueSubscribe(subject, queue, func(m *nats.Msg) { handle(m.Subject, m.Data) })
	if err == nil {
		err = connection.FlushTimeout(connectTimeout)
	}
	// The server refuses before it answers the flush, but the refusal reaches only the connection's last error.
	if last := connection.LastError(); err == nil && errors.Is(last, nats.ErrPermissionViolation) && strings.Contains(last.Error(), `"`+subject+`"`) {
		err = last
	}
	if err != nil {
		if subscription != nil {
			_ = subscription.Unsubscribe()
		}
		return nil, fmt.Errorf("subscribing to %s: %w", subject, err)
	}
	return func() { _ = subscription.Unsubscribe() }, nil
}

// Request asks one broker and reads its answer into response. What the broker refuses is an *RPCError. No broker on the
// subject is a NOT_THERE error at once, not a timeout.
func Request(ctx context.Context, connection *nats.Conn, subject string, request, response any) error {
	data, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("writing the request to %s: %w", subject, err)
	}
	reply, err := connection.RequestWithContext(ctx, subject, data)
	if errors.Is(err, nats.ErrNoResponders) {
		return &RPCError{Code: CodeNotThere, Text: "no broker answers on " + subject}
	}
	if err != nil {
		return fmt.Errorf("requesting %s: %w", subject, err)
	}
	if code := reply.Header.Get(micro.ErrorCodeHeader); code != "" {
		return &RPCError{Code: code, Text: reply.Header.Get(micro.ErrorHeader)}
	}
	if err := json.Unmarshal(reply.Data, response); err != nil {
		return fmt.Errorf("reading the answer from %s (%d bytes): %w", subject, len(reply.Data), err)
	}
	return nil
}
