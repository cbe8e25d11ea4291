package control

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// L5: the subjects, and the percent-encoding of what NATS forbids in a token.
func TestSubjectsAreTheDocumentedOnes(t *testing.T) {
	s, err := NewSubjects("node.7", "default")
	require.NoError(t, err)
	group, err := s.Group("camera/rgb 100%.>*é")
	require.NoError(t, err)
	require.Equal(t, "callboard.node%2E7.default.group.camera/rgb%20100%25%2E%3E%2Aé", group)
	require.Equal(t, "callboard.node%2E7.default.group.*", s.AllGroups())
	require.Equal(t, "callboard.node%2E7.default.commit", s.Commit())
	require.Equal(t, "callboard.node%2E7.default.client", s.Client())
	require.Equal(t, "callboard.node%2E7.default.health", s.Health())
	require.Equal(t, "callboard.node%2E7.default.rpc.describe", s.Describe())
	require.Equal(t, "callboard.node%2E7.default.rpc.query", s.Query())
	require.Equal(t, "callboard.node%2E7.default.rpc.read", s.Read())
	require.Equal(t, "callboard.node%2E7.default.rpc.floor", s.Floor())
	require.Equal(t, "callboard.node%2E7.default.>", s.All())

	parsed, err := ParseEventSubject(group)
	require.NoError(t, err)
	require.Equal(t, EventSubject{"node.7", "default", KindGroup, "camera/rgb 100%.>*é"}, parsed)
	for _, request := range []string{s.Describe(), SubjectDescribeAll, "callboard.h.s", "other.h.s.commit", s.Commit() + ".x",
		"callboard.h.s.group", "callboard.h.bad name.commit", "callboard.%4.s.commit"} {
		_, err := ParseEventSubject(request)
		require.Error(t, err, request)
	}
}

func TestTokensRoundTripForAnyBytes(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	seen := map[string]string{}
	for range 20000 {
		raw := make([]byte, 1+random.IntN(6))
		for i := range raw {
			raw[i] = byte(random.UintN(256))
		}
		name := string(raw)
		token, err := EncodeToken(name)
		require.NoError(t, err)
		require.False(t, strings.ContainsAny(token, " .*>\t\r\n\x00\x7f"), "%q", token)
		back, err := DecodeToken(token)
		require.NoError(t, err)
		require.Equal(t, name, back)
		if other, taken := seen[token]; taken {
			require.Equal(t, other, name, "two names share the token %q", token)
		}
		seen[token] = name
	}
}

func TestTokensThatCannotBe(t *testing.T) {
	for token, text := range map[string]string{
		"":      "empty",
		"a.b":   `has '.' at byte 1: expected %2E`,
		"a b":   `has ' ' at byte 1: expected %20`,
		"x%2":   "ends inside the escape at byte 1",
		"x%":    "ends inside the escape at byte 1",
		"x%zz1": `has the escape "%zz" at byte 1`,
	} {
		_, err := DecodeToken(token)
		require.ErrorContains(t, err, text)
	}
	lower, err := DecodeToken("a%2eb")
	require.NoError(t, err)
	require.Equal(t, "a.b", lower)
	_, err = EncodeToken("")
	require.ErrorContains(t, err, "empty name")
	_, err = EncodeToken(strings.Repeat("x", MaxToken+1))
	require.ErrorContains(t, err, "1025 bytes: expected at most 1024")
}

func TestStageNamesAtTheirLimits(t *testing.T) {
	require.NoError(t, CheckStageName("a"))
	require.NoError(t, CheckStageName("A-z_0"+strings.Repeat("x", 27)))
	for name, text := range map[string]string{
		"":                      "stage name is empty",
		strings.Repeat("x", 33): "has 33 characters: expected at most 32",
		"a.b":                   `has '.' at byte 1`,
		"../x":                  `has '.' at byte 0`,
		"é":                     `has 'é' at byte 0`,
		"a\x00":                 `has '\x00' at byte 1`,
	} {
		require.ErrorContains(t, CheckStageName(name), text)
	}
	require.PanicsWithValue(t, `control: Subjects{Host: "h", Stage: "s"} was not made with NewSubjects`,
		func() { _ = Subjects{Host: "h", Stage: "s"}.Commit() })
}
