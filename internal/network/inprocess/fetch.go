package inprocess

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// An Answer records the response of a handler in this process. It implements
// [http.ResponseWriter].
type Answer struct {
	Code int // of the response, 0 before there is one
	Body bytes.Buffer

	header http.Header
}

// Ask returns the response of a handler to a request.
func Ask(h http.Handler, req *http.Request) *Answer {
	a := &Answer{header: http.Header{}}
	h.ServeHTTP(a, req)
	return a
}

// Header implements [http.ResponseWriter].
func (a *Answer) Header() http.Header { return a.header }

// WriteHeader implements [http.ResponseWriter].
func (a *Answer) WriteHeader(code int) {
	if a.Code == 0 {
		a.Code = code
	}
}

// Write implements [http.ResponseWriter].
func (a *Answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.Body.Write(b)
}

// Fetch decodes the JSON that h serves at path. It takes no context, because the result
// is cached for all clients. The request accepts no encoding, so the response is not
// compressed.
func Fetch(h http.Handler, path, accept string, into any) error {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	r.Header.Set("Accept", accept)
	a := Ask(h, r)
	if a.Code != http.StatusOK {
		return fmt.Errorf("read %s of this server: %d %s", path, a.Code, bytes.TrimSpace(a.Body.Bytes()))
	}
	if err := json.Unmarshal(a.Body.Bytes(), into); err != nil {
		return fmt.Errorf("read %s of this server: %w", path, err)
	}
	return nil
}
