package bounds

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

const maps = "/clusters/root:a/api/v1/namespaces/default/configmaps"

func TestWhatNoHonestClientSends(t *testing.T) {
	get := func(target string, headers ...string) *http.Request {
		req := httptest.NewRequest(http.MethodGet, target, nil)
		for i := 0; i < len(headers); i += 2 {
			req.Header.Add(headers[i], headers[i+1])
		}
		return req
	}
	for name, c := range map[string]struct {
		req  *http.Request
		code int
		text string
	}{
		"long selector":       {get(maps + "?labelSelector=" + strings.Repeat("a", maxURL)), 414, "the limit is 16384"},
		"long path":           {get("/" + strings.Repeat("a", maxURL)), 414, "the limit is 16384"},
		"many requirements":   {get(maps + "?labelSelector=" + strings.Repeat("a,", maxRequirements) + "a,b"), 400, "the limit is 100"},
		"many escaped ones":   {get(maps + "?watch=1&fieldSelector=" + strings.Repeat("a%2C", maxRequirements/2) + strings.Repeat("%2c", maxRequirements/2) + ",b"), 400, "the limit is 100"},
		"no set of fields":    {get(maps + "?fieldSelector=(" + strings.Repeat("a=b,", maxRequirements) + "a=b,a=b)"), 400, "the limit is 100"},
		"a set and many more": {get(maps + "?labelSelector=a+in+%28b%29%2C" + strings.Repeat("a,", maxRequirements) + "b"), 400, "the limit is 100"},
		"a set in another":    {get(maps + "?labelSelector=a+in+(&x=" + strings.Repeat("a,", maxRequirements) + "b,c"), 400, "the limit is 100"},
		"many values":         {get(maps + "?labelSelector=a%20in%20%28" + strings.Repeat("b%2c", maxTerms) + "b,c)"), 400, "the limit is 500"},
		"many parameters":     {get(maps + "?" + strings.Repeat("a&", maxParameters)), 400, "the limit is 100"},
		"deleting by many":    {httptest.NewRequest(http.MethodDelete, maps+"?labelSelector="+strings.Repeat("a,", maxRequirements+1), strings.NewReader("{}")), 400, "the limit is 100"},
		"many headers":        {get(maps, "Impersonate-Group", strings.Repeat("a", maxHeaders/2), "Impersonate-Group", strings.Repeat("b", maxHeaders/2)), 431, "the limit is 65536"},
		"many media types":    {get(maps, "Accept", strings.Repeat("a/b,", maxHeader/4)+"*/*"), 431, "the limit is 16384"},
		"a short selector":    {get(maps + "?labelSelector=a%20in%20(" + strings.Repeat("b,", 400) + "c)"), 200, ""},
		"two sets":            {get(maps + "?labelSelector=a+in+%28" + strings.Repeat("b%2C", 200) + "c%29%2Cd+notin+(" + strings.Repeat("b,", 200) + "c)"), 200, ""},
		"an ordinary request": {get(maps+"?limit=500&resourceVersion=0", "Accept", "application/json", "Authorization", "Bearer "+strings.Repeat("a", 20<<10)), 200, ""},
	} {
		w := httptest.NewRecorder()
		Within(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, c.req)
		if w.Code != c.code {
			t.Errorf("%s: %d, want %d", name, w.Code, c.code)
		}
		if c.text == "" {
			continue
		}
		var status metav1.Status
		if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil || status.Kind != "Status" || int(status.Code) != c.code || !strings.Contains(status.Message, c.text) {
			t.Errorf("%s: %v, %s", name, err, w.Body)
		}
	}
}

// Requests whose clients have disconnected are not served. After many of them the server
// closes the connection.
func TestAbandonedRequestsAreNotServed(t *testing.T) {
	h := Within(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("an abandoned request is served") }))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	closes := 0
	for range 100 * abandonedEach {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, maps, nil))
		if w.Header().Get("Connection") == "close" {
			closes++
		}
	}
	if closes == 0 || closes > 10*100 {
		t.Errorf("%d connections are closed after %d abandoned requests", closes, 100*abandonedEach)
	}
}

func TestReviewsOfAccessAreBounded(t *testing.T) {
	var read error
	h := Within(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { _, read = io.ReadAll(req.Body) }))
	const reviews = "/clusters/root/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
	for size, refused := range map[int]bool{maxReview: false, maxReview + 1: true} {
		body := io.MultiReader(strings.NewReader(strings.Repeat("a", size))) // of unknown length
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, reviews, body))
		if refused != apierrors.IsRequestEntityTooLargeError(read) {
			t.Errorf("%d bytes: %v", size, read)
		}
	}
}

// BenchmarkWorst measures the worst selector within the bounds.
func BenchmarkWorst(b *testing.B) {
	text := strings.Repeat("k!=v,", maxRequirements) + "c"
	b.ReportAllocs()
	for b.Loop() {
		if _, err := labels.Parse(text); err != nil {
			b.Fatal(err)
		}
	}
}
