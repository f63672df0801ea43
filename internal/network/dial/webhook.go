package dial

import "net/http"

// WebhookAgent is the user agent of kube-apiserver in requests to webhooks.
const WebhookAgent = "kube-apiserver-admission"

// Failing returns a transport whose calls fail with err. Upstream takes a transport where it would
// have to take an error.
func Failing(err error) http.RoundTripper { return failing{err} }

type failing struct{ err error }

// RoundTrip implements [http.RoundTripper].
func (f failing) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_ = req.Body.Close() // a RoundTripper must close it; err counts
	}
	return nil, f.err
}
