package edge

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"github.com/unforked/kcp/internal/auth/authz"
)

// howToEnter is appended to refusals of discovery, the first request of kubectl. The text
// does not show whether the workspace exists.
const howToEnter = `; you may not enter this workspace, or it does not exist: ask its administrators to "kubectl ws share" it with you`

// WithReadableRefusals answers forbidden requests for aggregated discovery with the message
// as plain text. client-go prints such a text, but prints "unknown" for a Status.
func WithReadableRefusals(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if (req.URL.Path != "/api" && req.URL.Path != "/apis") || !strings.Contains(req.Header.Get("Accept"), "as=APIGroupDiscoveryList") {
			next.ServeHTTP(w, req)
			return
		}
		r := &refusal{ResponseWriter: w}
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(r), req)
		r.finish()
	})
}

// A refusal is a response writer that buffers the body of a 403.
type refusal struct {
	http.ResponseWriter
	forbidden bool
	body      bytes.Buffer
}

// Unwrap implements [responsewriter.UserProvidedDecorator].
func (r *refusal) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// WriteHeader implements [http.ResponseWriter].
func (r *refusal) WriteHeader(code int) {
	if r.forbidden = code == http.StatusForbidden; !r.forbidden {
		r.ResponseWriter.WriteHeader(code)
	}
}

// Write implements [http.ResponseWriter].
func (r *refusal) Write(b []byte) (int, error) {
	if r.forbidden {
		return r.body.Write(b)
	}
	return r.ResponseWriter.Write(b)
}

// finish writes the buffered response, if there is one.
func (r *refusal) finish() {
	if !r.forbidden {
		return
	}
	body := r.body.Bytes()
	var status metav1.Status
	if err := json.Unmarshal(body, &status); err == nil && status.Kind == "Status" {
		if strings.HasSuffix(status.Message, authz.Denied) {
			status.Message += howToEnter
		}
		body = []byte(status.Message)
		r.Header().Set("Content-Type", "text/plain; charset=utf-8")
		r.Header().Del("Content-Length")
	}
	r.ResponseWriter.WriteHeader(http.StatusForbidden)
	_, _ = r.ResponseWriter.Write(body) // fails only if the client has gone
}
