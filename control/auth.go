package control

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"

	"github.com/nats-io/nats-server/v2/server"
)

// Role is what a credential may do.
type Role string

// The roles in the runtime file.
const (
	// RoleFull may do everything: processes of the broker's own user.
	RoleFull Role = "full"
	// RoleObserver may subscribe to events and call the read-only requests.
	RoleObserver Role = "observer"
)

// The broker's own two roles never leave its process. Events and requests have a connection each, so that a publish that
// hangs does not hold up an answer, and so that no request can make the broker write on an event subject.
const (
	roleEvents  Role = "events"
	roleService Role = "service"
)

// ObserverInbox is the inbox prefix of observers. With the default prefix an observer could read everybody's answers,
// so the server refuses it.
const ObserverInbox = "_INBOX.observer"

// Credential is how one role connects.
type Credential struct {
	User            string `json:"user,omitempty"`
	Password        string `json:"password,omitempty"`
	CredentialsFile string `json:"credentials_file,omitempty"` // external servers: a .creds file
	NKeyFile        string `json:"nkey_file,omitempty"`        // external servers: an nkey seed file
	Token           string `json:"token,omitempty"`            // external servers
	CAFile          string `json:"ca_file,omitempty"`          // external servers with TLS: who signed the server's certificate, if not the system's list
	CertFile        string `json:"cert_file,omitempty"`        // external servers that want one: the certificate, and its key
	KeyFile         string `json:"key_file,omitempty"`
	InboxPrefix     string `json:"inbox_prefix,omitempty"`
}

func (c Credential) empty() bool {
	return c.User == "" && c.CredentialsFile == "" && c.NKeyFile == "" && c.Token == "" && c.CertFile == ""
}

// permissions of a role on the embedded server; nil allows everything.
func permissions(role Role) *server.Permissions {
	allow := func(subjects ...string) *server.SubjectPermission {
		return &server.SubjectPermission{Allow: subjects}
	}
	requests := []string{
		"callboard.*.*.rpc.describe", "callboard.*.*.rpc.query", "callboard.*.*.rpc.read", "callboard.*.*.rpc.floor",
		SubjectDescribeAll,
	}
	switch role {
	case RoleFull:
		return nil
	case RoleObserver:
		// Requests of others are not shown: they carry reply subjects. And an observer in a queue group would take
		// announcements from the workers that share work by it.
		return &server.Permissions{
			Publish: allow(append(requests, "$SRV.>")...),
			Subscribe: &server.SubjectPermission{
				Allow: []string{"callboard.>", ObserverInbox + ".>"},
				Deny:  append(requests, "callboard.> >"),
			},
		}
	case roleEvents:
		return &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: []string{"callboard.>"}, Deny: requests},
			Subscribe: &server.SubjectPermission{Deny: []string{">"}},
		}
	case roleService:
		return &server.Permissions{Publish: allow("_INBOX.>"), Subscribe: allow(append(requests, "$SRV.>")...)}
	}
	panic("control: no permissions for role " + string(role))
}

// gate is the embedded server's authentication: one account for each role, made at start, and no other way in.
type gate struct {
	accounts map[string]account
}

type account struct {
	role          Role
	passwordHash  [sha256.Size]byte
	inProcessOnly bool
}

// newGate makes fresh credentials for every role.
func newGate() (*gate, map[Role]Credential) {
	g := &gate{accounts: map[string]account{}}
	credentials := map[Role]Credential{}
	for _, role := range []Role{RoleFull, RoleObserver, roleEvents, roleService} {
		credential := Credential{User: string(role), Password: secret()}
		if role == RoleObserver {
			credential.InboxPrefix = ObserverInbox
		}
		credentials[role] = credential
		g.accounts[credential.User] = account{
			role:          role,
			passwordHash:  sha256.Sum256([]byte(credential.Password)),
			inProcessOnly: role == roleEvents || role == roleService,
		}
	}
	return g, credentials
}

// Check implements server.Authentication. The hash makes the comparison's time independent of the password's length.
func (g *gate) Check(c server.ClientAuthentication) bool {
	options := c.GetOpts()
	account, known := g.accounts[options.Username]
	hash := sha256.Sum256([]byte(options.Password))
	if subtle.ConstantTimeCompare(hash[:], account.passwordHash[:]) != 1 || !known || c.Kind() != server.CLIENT {
		return false
	}
	if account.inProcessOnly {
		if address := c.RemoteAddress(); address == nil || address.Network() != "pipe" {
			return false
		}
	}
	c.RegisterUser(&server.User{Username: options.Username, Permissions: permissions(account.role)})
	return true
}

// secret is 192 random bits as text that needs no quoting anywhere.
func secret() string {
	var bytes [24]byte
	_, _ = rand.Read(bytes[:]) // never fails: crypto/rand ends the process itself where no randomness is
	return base64.RawURLEncoding.EncodeToString(bytes[:])
}
