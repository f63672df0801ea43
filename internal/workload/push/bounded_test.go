package push

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/unforked/kcp/internal/workload/answers"
)

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

type answer func(*http.Request) (*http.Response, error)

func (f answer) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A physical cluster that never ends its answer to a probe does not fill the memory of the server.
func TestResponsesAreBounded(t *testing.T) {
	for _, url := range []string{"https://x/api", "https://x/api?watch=true"} {
		through := bounded{answer(func(*http.Request) (*http.Response, error) {
			return &http.Response{Body: io.NopCloser(io.MultiReader(io.LimitReader(endless{}, mostProbe), strings.NewReader("the rest")))}, nil
		})}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := through.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		if !errors.Is(err, answers.ErrTooLarge) || len(got) != mostProbe || !strings.Contains(err.Error(), "more than 256 KiB") {
			t.Errorf("%s: %d bytes, %v", url, len(got), err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
	}
}
