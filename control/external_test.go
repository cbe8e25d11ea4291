package control

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"callboard/control/natstest"
)

// configured are the options of a file in testdata. The keys in there open nothing but these servers.
func configured(t *testing.T, name string) *server.Options {
	t.Helper()
	options, err := server.ProcessConfigFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	return options
}

// certificate makes a self-signed certificate for 127.0.0.1, usable on both sides, and gives its files.
func certificate(t *testing.T) (certFile, keyFile string, pair tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	secret, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	certFile, keyFile = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	certText := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyText := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret})
	require.NoError(t, os.WriteFile(certFile, certText, 0o600))
	require.NoError(t, os.WriteFile(keyFile, keyText, 0o600))
	pair, err = tls.X509KeyPair(certText, keyText)
	require.NoError(t, err)
	return certFile, keyFile, pair
}

// Each way in that an external server may want, and what is said of credentials that it does not take. Events, requests and the
// processes that read the runtime file all go the same way.
func TestExternalServerCredentials(t *testing.T) {
	certFile, keyFile, pair := certificate(t)
	roots := x509.NewCertPool()
	text, err := os.ReadFile(certFile)
	require.NoError(t, err)
	require.True(t, roots.AppendCertsFromPEM(text))
	otherCert, otherKey, _ := certificate(t)
	badFile := filepath.Join(t.TempDir(), "absent.creds")
	for _, c := range []struct {
		name  string
		serve *server.Options
		user  string // before the address, with its @
		good  Credential
		wrong map[string]External // text of the error → what was given; URL is what stands before the address
	}{
		{name: "user and password", serve: &server.Options{Username: "u", Password: "p"}, user: "nats://u:p@", wrong: map[string]External{
			"Authorization Violation": {URL: "nats://u:q@"},
			"no credentials: give":    {URL: "nats://"},
		}},
		{name: "token", serve: &server.Options{Authorization: "s3cret"}, user: "nats://s3cret@", wrong: map[string]External{
			"Authorization Violation": {URL: "nats://secret@"},
		}},
		{name: "nkey", serve: configured(t, "nkey.conf"), good: Credential{NKeyFile: "testdata/user.nkey"}, wrong: map[string]External{
			"reading nkey file":       {Full: Credential{NKeyFile: badFile}},
			"Authorization Violation": {URL: "nats://u:p@"},
		}},
		{name: "creds", serve: configured(t, "operator.conf"), good: Credential{CredentialsFile: "testdata/user.creds"}, wrong: map[string]External{
			"absent.creds":            {Full: Credential{CredentialsFile: badFile}},
			"Authorization Violation": {URL: "nats://u:p@"},
		}},
		{name: "tls", serve: &server.Options{Username: "u", Password: "p", TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}}}, user: "tls://u:p@",
			good: Credential{CAFile: certFile}, wrong: map[string]External{
				"certificate":  {URL: "tls://u:p@"},
				"no such file": {URL: "tls://u:p@", Full: Credential{CAFile: badFile}},
			}},
		{name: "client certificate", serve: &server.Options{TLSVerify: true, TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert}},
			user: "tls://", good: Credential{CAFile: certFile, CertFile: certFile, KeyFile: keyFile}, wrong: map[string]External{
				"tls: ": {URL: "tls://", Full: Credential{CAFile: certFile, CertFile: otherCert, KeyFile: otherKey}},
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := natstest.Serve(t, c.serve)
			address := ns.Addr().String()
			s, err := Start(Options{Identity: testIdentity, External: &External{URL: c.user + address, Full: c.good, Observer: Credential{User: "o", Password: "p"}}})
			require.NoError(t, err)
			defer s.Close()
			require.True(t, s.Connected())
			require.NotContains(t, s.Info().URL, "@", "credentials are not printed with the address")
			other, err := Connect(s.Info(), RoleFull)
			require.NoError(t, err, "what the runtime file says is enough")
			defer other.Close()
			heard, err := other.SubscribeSync("callboard.>")
			require.NoError(t, err)
			require.NoError(t, other.Flush())
			a := startAnnouncer(t, s.Events(), 0)
			a.Commit(CommitNote{Epoch: 5})
			_, err = heard.NextMsg(patience)
			require.NoError(t, err)
			startService(t, s, testIdentity, 0)
			var d Description
			require.NoError(t, Request(within(t), other, testSubjects(t, testIdentity).Describe(), struct{}{}, &d))
			for text, external := range c.wrong {
				external.URL += address
				_, err := Start(Options{Identity: testIdentity, External: &external})
				require.ErrorContains(t, err, text)
				require.ErrorContains(t, err, "external NATS")
				require.ErrorContains(t, err, address)
			}
		})
	}
}

// A server that comes back with other credentials is dialled until an operator has put it right.
func TestExternalServerThatRefusesAfterItsRestart(t *testing.T) {
	port := natstest.ReservedPort(t)
	first := natstest.Serve(t, &server.Options{Username: "u", Password: "p", Port: port})
	s, err := Start(Options{Identity: testIdentity, External: &External{URL: fmt.Sprintf("nats://u:p@127.0.0.1:%d", port)}})
	require.NoError(t, err)
	defer s.Close()
	first.Shutdown()
	first.WaitForShutdown()
	second := natstest.Serve(t, &server.Options{Username: "u", Password: "other", Port: port})
	time.Sleep(700 * time.Millisecond) // several tries
	require.False(t, s.Connected())
	second.Shutdown()
	second.WaitForShutdown()
	natstest.Serve(t, &server.Options{Username: "u", Password: "p", Port: port})
	require.Eventually(t, s.Connected, patience, 10*time.Millisecond)
}
