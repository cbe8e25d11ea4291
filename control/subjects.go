package control

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Subject templates (rule L5). <host>, <stage> and <attribute> stand for one encoded token each.
const (
	SubjectRoot = "callboard"

	SubjectGroup  = "callboard.<host>.<stage>.group.<attribute>"
	SubjectCommit = "callboard.<host>.<stage>.commit"
	SubjectClient = "callboard.<host>.<stage>.client"
	SubjectHealth = "callboard.<host>.<stage>.health"

	SubjectDescribe = "callboard.<host>.<stage>.rpc.describe"
	SubjectQuery    = "callboard.<host>.<stage>.rpc.query"
	SubjectRead     = "callboard.<host>.<stage>.rpc.read"
	SubjectFloor    = "callboard.<host>.<stage>.rpc.floor"

	// SubjectDescribeAll is answered by every broker on the bus, each with its own stage.
	SubjectDescribeAll = "callboard.rpc.describe"
)

// Limits of the names that go into subjects.
const (
	MaxStageName = 32   // characters
	MaxToken     = 1024 // bytes before encoding, as many as an attribute's name may have; three times that fits NATS's control line of 4096
)

// Subjects builds the subjects of one stage on one host. Make it with NewSubjects: the builders rely on its checks.
type Subjects struct {
	Host  string // not encoded
	Stage string

	host string // encoded
}

// NewSubjects checks both names.
func NewSubjects(host, stage string) (Subjects, error) {
	if err := CheckStageName(stage); err != nil {
		return Subjects{}, err
	}
	encoded, err := EncodeToken(host)
	if err != nil {
		return Subjects{}, fmt.Errorf("host name for NATS subjects: %w", err)
	}
	return Subjects{Host: host, Stage: stage, host: encoded}, nil
}

// Group is the subject on which map groups of one attribute are announced.
func (s Subjects) Group(attribute string) (string, error) {
	token, err := EncodeToken(attribute)
	if err != nil {
		return "", fmt.Errorf("attribute name for a NATS subject: %w", err)
	}
	return strings.Replace(s.expand(SubjectGroup), "<attribute>", token, 1), nil
}

// AllGroups is the wildcard over the groups of every attribute.
func (s Subjects) AllGroups() string {
	return strings.Replace(s.expand(SubjectGroup), "<attribute>", "*", 1)
}

// Commit, Client and Health are event subjects; Describe, Query, Read and Floor are request subjects.
func (s Subjects) Commit() string   { return s.expand(SubjectCommit) }
func (s Subjects) Client() string   { return s.expand(SubjectClient) }
func (s Subjects) Health() string   { return s.expand(SubjectHealth) }
func (s Subjects) Describe() string { return s.expand(SubjectDescribe) }
func (s Subjects) Query() string    { return s.expand(SubjectQuery) }
func (s Subjects) Read() string     { return s.expand(SubjectRead) }
func (s Subjects) Floor() string    { return s.expand(SubjectFloor) }

// All is the wildcard over everything this stage says and is asked.
func (s Subjects) All() string { return SubjectRoot + "." + s.host + "." + s.Stage + ".>" }

func (s Subjects) expand(template string) string {
	if s.host == "" {
		panic(fmt.Sprintf("control: Subjects{Host: %q, Stage: %q} was not made with NewSubjects", s.Host, s.Stage))
	}
	return strings.Replace(strings.Replace(template, "<host>", s.host, 1), "<stage>", s.Stage, 1)
}

// EventSubject is what an event's subject says, decoded.
type EventSubject struct {
	Host, Stage string
	Kind        Kind
	Attribute   string // only for KindGroup
}

// ParseEventSubject reads the subject of an event; a request subject is an error.
func ParseEventSubject(subject string) (EventSubject, error) {
	parts := strings.Split(subject, ".")
	fail := func(why string) (EventSubject, error) {
		return EventSubject{}, fmt.Errorf("subject %q is not a Callboard event: %s", subject, why)
	}
	if len(parts) < 4 || parts[0] != SubjectRoot {
		return fail("expected callboard.<host>.<stage>.<kind>")
	}
	event := EventSubject{Stage: parts[2], Kind: Kind(parts[3])}
	if err := CheckStageName(event.Stage); err != nil {
		return fail(err.Error())
	}
	host, err := DecodeToken(parts[1])
	if err != nil {
		return fail(err.Error())
	}
	event.Host = host
	switch event.Kind {
	case KindGroup:
		if len(parts) != 5 {
			return fail(fmt.Sprintf("a group subject has 5 tokens, this one %d", len(parts)))
		}
		if event.Attribute, err = DecodeToken(parts[4]); err != nil {
			return fail(err.Error())
		}
	case KindCommit, KindClient, KindHealth:
		if len(parts) != 4 {
			return fail(fmt.Sprintf("a %s subject has 4 tokens, this one %d", event.Kind, len(parts)))
		}
	default:
		return fail(fmt.Sprintf("its kind %q is none of group, commit, client, health", parts[3]))
	}
	return event, nil
}

// CheckStageName says whether a name can be a stage's: 1 to 32 of A-Z a-z 0-9 _ -. Such a name is at once a NATS token,
// a directory name and safe in a shell.
func CheckStageName(name string) error {
	if name == "" {
		return fmt.Errorf("stage name is empty: expected 1 to %d of A-Z a-z 0-9 _ -", MaxStageName)
	}
	for i, r := range name {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-') {
			return fmt.Errorf("stage name %q has %q at byte %d: expected only A-Z a-z 0-9 _ -", clip(name), r, i)
		}
	}
	if len(name) > MaxStageName {
		return fmt.Errorf("stage name %q has %d characters: expected at most %d", clip(name), len(name), MaxStageName)
	}
	return nil
}

const upperHex = "0123456789ABCDEF"

// EncodeToken makes any non-empty name one NATS token. Encoded as %XX, upper case, are the ASCII control characters, space,
// `.`, `*`, `>`, `%` and bytes that are not valid UTF-8. All other UTF-8 stays readable. Equal names have equal tokens
// and different names different ones.
func EncodeToken(name string) (string, error) {
	if name == "" {
		return "", fmt.Errorf("the empty name cannot be a subject token: give at least 1 byte")
	}
	if len(name) > MaxToken {
		return "", fmt.Errorf("name %q has %d bytes: expected at most %d", clip(name), len(name), MaxToken)
	}
	var b strings.Builder
	for i := 0; i < len(name); {
		r, size := utf8.DecodeRuneInString(name[i:])
		if size == 1 && (r == utf8.RuneError || mustEncode(name[i])) {
			b.WriteByte('%')
			b.WriteByte(upperHex[name[i]>>4])
			b.WriteByte(upperHex[name[i]&15])
		} else {
			b.WriteString(name[i : i+size])
		}
		i += size
	}
	return b.String(), nil
}

func mustEncode(c byte) bool {
	return c <= ' ' || c == 0x7f || c == '.' || c == '*' || c == '>' || c == '%'
}

// DecodeToken undoes EncodeToken. Hex digits of either case are read; a character that should have been encoded, or a %
// without two hex digits, is an error that names its place.
func DecodeToken(token string) (string, error) {
	if token == "" {
		return "", fmt.Errorf("empty subject token")
	}
	out := make([]byte, 0, len(token))
	for i := 0; i < len(token); i++ {
		c := token[i]
		if c != '%' {
			if mustEncode(c) {
				return "", fmt.Errorf("token %q has %q at byte %d: expected %%%02X", clip(token), c, i, c)
			}
			out = append(out, c)
			continue
		}
		if i+2 >= len(token) {
			return "", fmt.Errorf("token %q ends inside the escape at byte %d: expected %% and 2 hex digits", clip(token), i)
		}
		high, low := unhex(token[i+1]), unhex(token[i+2])
		if high < 0 || low < 0 {
			return "", fmt.Errorf("token %q has the escape %q at byte %d: expected %% and 2 hex digits", clip(token), token[i:i+3], i)
		}
		out = append(out, byte(high<<4|low))
		i += 2
	}
	return string(out), nil
}

func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	}
	return -1
}

// clip keeps a peer's overlong name out of error texts and logs.
func clip(s string) string {
	if len(s) <= 80 {
		return s
	}
	return s[:80] + "…"
}
