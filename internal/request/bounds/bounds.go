// Package bounds limits what clients send: the parts of a request, before the server parses or
// authenticates it, and the RSA keys and regular expressions in the objects of tenants.
//
// Parsing a label selector of 500 KB takes tens of milliseconds and megabytes of memory,
// and the libraries parse it before authentication. Parsing a request within the bounds
// takes less than a millisecond.
package bounds

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// maxURL is the largest limit of common proxies: 8 KiB (nginx, Apache), 16 KiB (AWS,
	// HAProxy). Clients that work behind one of them do not reach it.
	maxURL = 16 << 10 // bytes
	// maxHeaders leaves room for a token of 16 KiB and for impersonation with hundreds
	// of groups. Envoy passes on 60 KiB.
	maxHeaders = 64 << 10 // bytes of names and values
	// maxHeader limits each header that is parsed before authentication.
	maxHeader = 16 << 10 // bytes
	// maxParameters is several times the number of known parameters; lists have twelve.
	maxParameters = 100
	// maxRequirements and maxTerms limit all selectors together. A request parses them several times, and a watch
	// matches each event with them. Values of a set, as in "a in (b, c)", are terms that cost little.
	maxRequirements = 100
	maxTerms        = 500
	// maxReview limits the body of access reviews, which can contain selectors.
	maxReview = 64 << 10 // bytes
)

// abandonedEach is the average number of abandoned requests on a connection before the
// server asks the client to open another one. Honest clients rarely abandon a request
// before the server begins to serve it.
const abandonedEach = 100

// Within serves requests within the bounds with next. It refuses others with a Status that
// has the bound. It is the outermost handler of a server.
//
// Requests whose client has already reset the stream are not served. Otherwise a client
// that resets each stream at once could send thousands of requests per second through all
// filters of the server.
func Within(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Context().Err() != nil {
			if rand.IntN(abandonedEach) == 0 {
				w.Header().Set("Connection", "close") // in HTTP/2 a GOAWAY
			}
			return
		}
		if err := check(req); err != nil {
			refuse(w, err)
			return
		}
		if isReview(req) {
			req = withLimit(req, maxReview)
		}
		next.ServeHTTP(w, req)
	})
}

// terms estimates the number of requirements of the selectors in a query, and the number of these and of the values of
// sets, by the commas. Only label selectors have sets.
func terms(query string) (requirements, all int) {
	for parameter := range strings.FieldsFuncSeq(query, func(r rune) bool { return r == '&' || r == ';' }) {
		sets, inSet := strings.HasPrefix(parameter, "labelSelector="), false
		for i := 0; i < len(parameter); i++ {
			c := parameter[i]
			if c == '%' && i+2 < len(parameter) {
				c = encoded(parameter[i+1 : i+3])
			}
			switch c {
			case '(':
				inSet = sets
			case ')':
				inSet = false
			case ',':
				if all++; !inSet {
					requirements++
				}
			}
		}
	}
	return requirements, all
}

// encoded returns the comma or the parenthesis that two digits stand for, or zero.
func encoded(hex string) byte {
	switch strings.ToUpper(hex) {
	case "28":
		return '('
	case "29":
		return ')'
	case "2C":
		return ','
	}
	return 0
}

// check returns an error if a request exceeds a bound. It parses nothing.
func check(req *http.Request) *apierrors.StatusError {
	if n := max(len(req.RequestURI), len(req.URL.Path)+len(req.URL.RawQuery)); n > maxURL {
		return refusal(http.StatusRequestURITooLong, "URITooLong", fmt.Sprintf(
			"the URL of the request has %d bytes, and the limit is %d; use a shorter selector, or list in pages with limit and filter the objects yourself", n, maxURL))
	}
	query := req.URL.RawQuery
	if n := 1 + strings.Count(query, "&") + strings.Count(query, ";"); n > maxParameters {
		return apierrors.NewBadRequest(fmt.Sprintf("the URL of the request has %d query parameters, and the limit is %d; remove parameters that the API does not have", n, maxParameters))
	}
	switch requirements, all := terms(query); {
	case requirements > maxRequirements:
		return apierrors.NewBadRequest(fmt.Sprintf("the selectors of the request have %d requirements, and the limit is %d; give the objects a common label and select by it", requirements, maxRequirements))
	case all > maxTerms:
		return apierrors.NewBadRequest(fmt.Sprintf("the selectors of the request have %d terms, and the limit is %d; give the objects a common label and select by it", all, maxTerms))
	}
	return checkHeaders(req.Header)
}

func checkHeaders(header http.Header) *apierrors.StatusError {
	sum := 0
	for name, values := range header {
		one := 0
		for _, value := range values {
			sum += len(name) + len(value)
			one += len(value)
		}
		if one > maxHeader && (name == "Accept" || name == "Content-Type") {
			return refusal(http.StatusRequestHeaderFieldsTooLarge, "HeadersTooLarge", fmt.Sprintf("the header %s has %d bytes, and the limit is %d; use fewer media types", name, one, maxHeader))
		}
	}
	if sum > maxHeaders {
		return refusal(http.StatusRequestHeaderFieldsTooLarge, "HeadersTooLarge", fmt.Sprintf(
			"the headers of the request have %d bytes, and the limit is %d; send a token with fewer groups, or impersonate with fewer headers", sum, maxHeaders))
	}
	return nil
}

func refusal(code int32, reason metav1.StatusReason, text string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: text}}
}

// refuse answers with a Status in JSON. It does not parse the Accept header of the client.
func refuse(w http.ResponseWriter, err *apierrors.StatusError) {
	status := err.ErrStatus
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-cache, private")
	w.WriteHeader(int(status.Code))
	_ = json.NewEncoder(w).Encode(status) // fails only if the client has disconnected
}

// isReview reports whether a request creates an access review.
func isReview(req *http.Request) bool {
	return req.Method == http.MethodPost && req.Body != nil && strings.Contains(req.URL.Path, "/apis/authorization.k8s.io/")
}

// withLimit returns a copy of the request. Reading more than n bytes of its body fails.
func withLimit(req *http.Request, n int64) *http.Request {
	limited := *req
	limited.Body = &limitedBody{req.Body, n, n}
	return &limited
}

type limitedBody struct {
	io.ReadCloser
	left, of int64
}

// Read implements [io.Reader].
func (b *limitedBody) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	if b.left -= int64(n); b.left < 0 {
		return 0, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("an access review has at most %d bytes; use fewer resources or a shorter selector", b.of))
	}
	return n, err
}
