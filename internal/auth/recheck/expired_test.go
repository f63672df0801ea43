package recheck

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net/http"
	"testing"
	"time"
)

// A request that has begun outlives a token that expires.
func TestExpired(t *testing.T) {
	now := time.Now()
	jwt := func(claims string) string {
		return "Bearer x." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".x"
	}
	for token, want := range map[string]bool{
		jwt(fmt.Sprintf(`{"exp":%d}`, now.Unix()-1)): true, jwt(fmt.Sprintf(`{"exp":%d}`, now.Unix()+60)): false,
		jwt(`{}`): false, jwt(`{"exp":"x"}`): false, "Bearer static-token": false, "Bearer a.!.c": false, "": false,
	} {
		if got := expired(&http.Request{Header: http.Header{"Authorization": {token}}}, now); got != want {
			t.Errorf("%q: %v", token, got)
		}
	}
	for end, want := range map[time.Duration]bool{-time.Second: true, time.Hour: false} {
		req := &http.Request{Header: http.Header{}, TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{NotAfter: now.Add(end)}}}}
		if got := expired(req, now); got != want {
			t.Errorf("a certificate that ends in %v: %v", end, got)
		}
	}
	// A client adds what is over and forged, to keep a token or a certificate that is revoked.
	over := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{NotAfter: now.Add(-time.Second)}}}
	for what, req := range map[string]*http.Request{
		"a certificate and a token":        {Header: http.Header{"Authorization": {"Bearer static-token"}}, TLS: over},
		"a certificate and another":        {Header: http.Header{"Authorization": {jwt(`{"exp":1}`)}}, TLS: over},
		"a certificate and a socket token": {Header: http.Header{"Sec-Websocket-Protocol": {"v4.channel.k8s.io, " + socketToken + "x"}}, TLS: over},
		"a token and a socket token":       {Header: http.Header{"Authorization": {jwt(`{"exp":1}`)}, "Sec-Websocket-Protocol": {socketToken + "x"}}},
	} {
		if expired(req, now) {
			t.Errorf("%s keep the request open", what)
		}
	}
}
