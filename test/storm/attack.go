package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const attackCommand = "attack"

// A target is the input of the child process of an attack: one line of JSON on its standard
// input. The end of the input ends the attack.
type target struct {
	Attack     string
	URL        string
	CA         []byte // in PEM
	Token      string // of the owner
	Workspaces []string
}

// at returns the path of a workspace.
func (t *target) at(i int) string { return t.Workspaces[i%len(t.Workspaces)] }

func (t *target) tls() *tls.Config {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(t.CA)
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}

// tally counts answers.
type tally struct {
	mu       sync.Mutex
	Sent     int
	Codes    map[int]int
	Hasty    int            // 429 without Retry-After
	Broken   int            // connections and requests without an answer
	Failures map[string]int // number of each 5xx error, by text
}

func newTally() *tally { return &tally{Codes: map[int]int{}, Failures: map[string]int{}} }

func (t *tally) add(o *tally) {
	t.Sent, t.Hasty, t.Broken = t.Sent+o.Sent, t.Hasty+o.Hasty, t.Broken+o.Broken
	for code, n := range o.Codes {
		t.Codes[code] += n
	}
	for text, n := range o.Failures {
		t.Failures[text] += n
	}
}

func (t *tally) sent() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Sent++
}

func (t *tally) broke() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Broken++
}

func (t *tally) answered(res *http.Response) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Codes[res.StatusCode]++
	if res.StatusCode == http.StatusTooManyRequests && res.Header.Get("Retry-After") == "" {
		t.Hasty++
	}
}

func (t *tally) failed(text []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.Failures) < 5 {
		t.Failures[string(text[:min(len(text), 300)])]++
	}
}

// attack runs an attack until its standard input ends, and writes its tally.
func attack(ctx context.Context, in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return err
	}
	var t target
	if err := json.Unmarshal(line, &t); err != nil {
		return err
	}
	run, ok := attacks()[t.Attack]
	if !ok {
		return fmt.Errorf("no attack %q", t.Attack)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with the input, and so with the parent
		_, _ = io.Copy(io.Discard, lines)
		cancel()
	}()
	count := newTally()
	if err := run(ctx, &t, count); err != nil && ctx.Err() == nil {
		return err
	}
	return json.NewEncoder(out).Encode(count)
}

// A flood sends a number of concurrent requests without pause.
type flood struct {
	inFlight int
	stranger bool // send no token
	leave    time.Duration
	accept   string
	request  func(i int) (method, path string, body []byte)
	each     func(t *target, i int) (method, path string, body []byte)
}

func (f flood) run(ctx context.Context, t *target, count *tally) error {
	tr := &http.Transport{TLSClientConfig: t.tls(), ForceAttemptHTTP2: true}
	defer tr.CloseIdleConnections()
	if f.each == nil {
		f.each = func(_ *target, i int) (string, string, []byte) { return f.request(i) }
	}
	var next atomic.Int64
	var all sync.WaitGroup
	for range f.inFlight {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := f.send(ctx, tr, t, int(next.Add(1)), count); err != nil {
					count.broke()
				}
			}
		})
	}
	all.Wait()
	return nil
}

// send sends one request, and reads the answer to its end.
func (f flood) send(ctx context.Context, tr *http.Transport, t *target, i int, count *tally) error {
	method, path, body := f.each(t, i)
	if f.leave > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.leave)
		defer cancel()
	}
	req, err := http.NewRequestWithContext(ctx, method, t.URL+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if !f.stranger {
		req.Header.Set("Authorization", "Bearer "+t.Token)
	}
	req.Header.Set("Content-Type", "application/json")
	if f.accept != "" {
		req.Header.Set("Accept", f.accept)
	}
	count.sent()
	res, err := tr.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	count.answered(res)
	if res.StatusCode >= 500 {
		text, err := io.ReadAll(io.LimitReader(res.Body, 1000))
		count.failed(text)
		return err
	}
	_, err = io.Copy(io.Discard, res.Body)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
