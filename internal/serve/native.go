package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// An answer records the response of a handler in this process.
type answer struct {
	code   int
	header http.Header
	body   bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(code int) {
	if a.code == 0 {
		a.code = code
	}
}

func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}

// fetch decodes the JSON that h serves at path. It takes no context, because the result
// is cached for all clients. The request accepts no encoding, so the response is not
// compressed.
func fetch(h http.Handler, path, accept string, into any) error {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	r.Header.Set("Accept", accept)
	a := answer{header: http.Header{}}
	h.ServeHTTP(&a, r)
	if a.code != http.StatusOK {
		return fmt.Errorf("read %s of this server: %d %s", path, a.code, bytes.TrimSpace(a.body.Bytes()))
	}
	if err := json.Unmarshal(a.body.Bytes(), into); err != nil {
		return fmt.Errorf("read %s of this server: %w", path, err)
	}
	return nil
}
