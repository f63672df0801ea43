package physical

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/network/dial"
)

type answers func(*http.Request) (*http.Response, error)

func (f answers) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A probe that the server could not send says nothing about the physical cluster.
func TestProbe(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"no connection":  {errors.New("connection refused"), workload.Unreachable},
		"too many calls": {fmt.Errorf("relay: %w", dial.ErrBusy), workload.ServerBusy},
	} {
		p, err := New(&rest.Config{Host: "https://x", Transport: answers(func(*http.Request) (*http.Response, error) { return nil, c.err })})
		if err != nil {
			t.Fatal(err)
		}
		for of, err := range map[string]error{"probe": p.Probe(t.Context(), time.Minute), "check": p.Check(t.Context())} {
			var got *Problem
			if !errors.As(err, &got) || got.Reason != c.want {
				t.Errorf("%s, %s: %v, want %s", name, of, err, c.want)
			}
		}
	}
}

// A probe asks for one namespace: the physical cluster may have so many that a list is too large.
func TestProbeIsSmall(t *testing.T) {
	var asked string
	p, err := New(&rest.Config{Host: "https://x", Transport: answers(func(r *http.Request) (*http.Response, error) {
		asked = r.URL.Query().Get("fieldSelector")
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
			Body: io.NopCloser(strings.NewReader(`{"kind":"NamespaceList","apiVersion":"v1","items":[]}`))}, nil
	})})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Probe(t.Context(), time.Minute); err != nil || asked != "metadata.name=kube-system" {
		t.Errorf("asked for %q: %v", asked, err)
	}
}
