package provider

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// shareCount is the number of shares of the tenants. All replicas must agree on it.
const shareCount = 64

// A share is a part of the tenants, by the hash of their names. One replica holds it.
type share struct {
	until *lease
	held  atomic.Bool
	mu    sync.RWMutex // for reading while a write to one of its tenants is under way
}

var errNotHeld = errors.New("another replica holds the share")

// holds reports whether this replica serves the tenants of the share. A nil share is held.
func (s *share) holds() bool { return s == nil || s.held.Load() }

// send sends a request to a tenant of the share. A write ends before another replica can take
// the share. Without replicas, s is nil.
func (s *share) send(transport http.RoundTripper, req *http.Request) (*http.Response, error) {
	if s == nil {
		return transport.RoundTrip(req)
	}
	until := s.until.end()
	if !s.holds() || !time.Now().Before(until) {
		return nil, errNotHeld
	}
	if req.Method == http.MethodGet {
		return transport.RoundTrip(req)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.holds() {
		return nil, errNotHeld
	}
	ctx, cancel := context.WithDeadlineCause(req.Context(), until, ErrDisengaged)
	resp, err := transport.RoundTrip(req.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err
	}
	resp.Body = &body{resp.Body, cancel}
	return resp, nil
}

// A body is the body of a response. The context of its request ends when it is closed.
type body struct {
	io.ReadCloser
	cancel context.CancelFunc
}

// Close implements io.Closer.
func (b *body) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

// set takes or drops the share. When it has dropped the share, no write is under way.
func (s *share) set(held bool) (changed bool) {
	if s.held.Swap(held) == held {
		return false
	}
	if !held {
		s.mu.Lock()
		defer s.mu.Unlock()
	}
	return true
}

// A lease is the time until which no other replica takes the shares of this one.
type lease struct {
	mu    sync.Mutex
	until time.Time
}

func (l *lease) end() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until
}

func (l *lease) valid() bool { return time.Now().Before(l.end()) }

func (l *lease) extend(until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = until
}

// shareOf returns the number of the share of a tenant.
func shareOf(tenant string) int { return int(hash(tenant) % shareCount) }

func hash(text string) uint64 {
	sum := sha256.Sum256([]byte(text))
	return binary.BigEndian.Uint64(sum[:8])
}

// ownerOf returns the replica that should hold a share: the one with the highest hash. So only
// the shares of a replica that comes or goes move.
func ownerOf(share int, replicas []string) string {
	return slices.MaxFunc(replicas, func(a, b string) int {
		return cmp.Or(cmp.Compare(hash(fmt.Sprint(share, " ", a)), hash(fmt.Sprint(share, " ", b))), cmp.Compare(a, b))
	})
}

// A plan says what a replica should do about the shares.
type plan struct {
	keep  []int // held, and to be held
	yield []int // held, and to be held by another replica
	take  []int // free, and to be held by this replica
}

// decide returns the plan of replica self. live are the live replicas, without those whose
// lease has expired. holders are the replicas that shares name as their holders.
func decide(self string, live map[string]bool, holders map[int]string) plan {
	replicas := slices.Sorted(maps.Keys(live))
	if !live[self] {
		replicas = append(replicas, self)
	}
	var p plan
	for i := range shareCount {
		mine := ownerOf(i, replicas) == self
		switch holder := holders[i]; {
		case holder == self && mine:
			p.keep = append(p.keep, i)
		case holder == self:
			p.yield = append(p.yield, i)
		case mine && !live[holder]:
			p.take = append(p.take, i)
		}
	}
	return p
}
