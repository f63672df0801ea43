package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/unforked/kcp/test/child"
)

// views measures what a provider's view over many tenants costs: the memory of a binding, the
// time from a write in a tenant until the provider has the event, how many events a second it
// gets, and how long a first list and a first watch take.
func views(ctx context.Context, b *bench) error {
	for text := range strings.SplitSeq(b.plan.viewed, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fmt.Errorf("-viewed: %q is no number of tenants", text)
		}
		if err := b.onKCP(ctx, func(kcp subject, s *server) error {
			defer s.stop()
			return b.view(ctx, s, n)
		}); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) view(ctx context.Context, s *server, n int) error {
	clients, err := child.Connect(ctx, s.user, b.plan.clients)
	if err != nil {
		return err
	}
	defer child.CloseAll(clients)
	of := fmt.Sprintf("view over %d tenants", n)
	tenants := make([]tenant, n)
	if _, err := s.load(ctx, clients, n, func(ctx context.Context, c *client, i int) (err error) {
		tenants[i], err = s.newTenant(ctx, c, fmt.Sprintf("consumer-%d", i))
		return err
	}); err != nil {
		return err
	}
	provider, err := s.newTenant(ctx, clients[0], "provider")
	if err != nil {
		return err
	}
	if err := export(ctx, clients[0], provider, customGroup); err != nil {
		return err
	}
	before, err := b.rested(ctx, s)
	if err != nil {
		return err
	}
	bound, err := s.load(ctx, clients, n, func(ctx context.Context, c *client, i int) error {
		return bind(ctx, c, tenants[i], provider, customGroup)
	})
	if err != nil {
		return err
	}
	after, err := b.rested(ctx, s)
	if err != nil {
		return err
	}
	b.report.addTime(s.subject, of, "bind, p50", bound.percentile(50))
	b.report.add(s.subject, of, "live heap of a binding", bytesUnit, (after.liveHeap-before.liveHeap)/float64(n))
	things, err := b.thingsOf(ctx, clients[0], provider)
	if err != nil {
		return err
	}
	if err := b.viewEvents(ctx, s, clients, tenants, things, of); err != nil {
		return err
	}
	return b.viewRate(ctx, s, clients, tenants, things, of)
}

// rested returns the footprint of the server after it has settled.
func (b *bench) rested(ctx context.Context, s *server) (footprint, error) {
	if err := child.Pause(ctx, b.plan.settle); err != nil {
		return footprint{}, err
	}
	return s.footprint(ctx)
}

// thingsOf returns the URL path of the things of all tenants of a provider.
func (b *bench) thingsOf(ctx context.Context, c *client, provider tenant) (string, error) {
	var slice struct {
		Status struct {
			Endpoints []struct {
				URL string `json:"url"`
			} `json:"endpoints"`
		} `json:"status"`
	}
	for {
		body, err := c.Call(ctx, http.MethodGet, base(provider)+apisPath+"v1alpha1/apiexportendpointslices/"+customGroup, jsonType, nil)
		if err != nil {
			return "", err
		}
		if err := json.Unmarshal(body, &slice); err != nil {
			return "", err
		}
		if len(slice.Status.Endpoints) > 0 {
			break
		}
		if err := child.Pause(ctx, 10*time.Millisecond); err != nil {
			return "", err
		}
	}
	u, err := url.Parse(slice.Status.Endpoints[0].URL)
	if err != nil {
		return "", err
	}
	return u.Path + "/clusters/*/apis/" + customGroup + "/v1/things", nil
}

// viewEvents measures the time from the start of a creation in a tenant to its event.
func (b *bench) viewEvents(ctx context.Context, s *server, clients []*client, tenants []tenant, things, of string) error {
	w, err := startWatchAt(ctx, s, things)
	if err != nil {
		return err
	}
	defer w.close()
	x, err := s.load(ctx, clients[:1], b.plan.lists, func(ctx context.Context, c *client, i int) error {
		word := fmt.Sprintf("at-%d.", i)
		if err := makeThing(ctx, c, tenants[i%len(tenants)], fmt.Sprintf("event-%d", i), word, b.plan.size); err != nil {
			return err
		}
		return w.await(word)
	})
	if err != nil {
		return err
	}
	b.report.addTime(s.subject, of, "create to event, p50", x.percentile(50))
	b.report.addTime(s.subject, of, "create to event, p99", x.percentile(99))
	b.report.addTime(s.subject, of, "server CPU of a create with its event", x.each(x.server))
	return nil
}

// viewRate measures how many events a second arrive while all clients create objects, and how
// long a list and a watch of all of them take from the start.
func (b *bench) viewRate(ctx context.Context, s *server, clients []*client, tenants []tenant, things, of string) error {
	reader, err := child.NewClient(s.user)
	if err != nil {
		return err
	}
	defer reader.Close()
	count := func(query string, want int) (wait func() error, err error) {
		body, err := reader.Stream(ctx, things+query)
		if err != nil {
			return nil, err
		}
		var seen atomic.Int64
		done := make(chan error, 1)
		go func() {
			lines := bufio.NewReaderSize(body, 1<<20)
			for {
				line, err := lines.ReadString('\n')
				if err != nil {
					done <- fmt.Errorf("the watch ended after %d of %d events: %w", seen.Load(), want, err)
					return
				}
				if strings.Contains(line, `"ADDED"`) && seen.Add(1) == int64(want) {
					done <- nil
					return
				}
			}
		}()
		return func() error {
			defer func() { _ = body.Close() }() // nothing more is read
			return <-done
		}, nil
	}
	n := b.plan.operations
	body, err := reader.Call(ctx, http.MethodGet, things+"?limit=1", jsonType, nil)
	if err != nil {
		return err
	}
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return err
	}
	wait, err := count("?watch=1&resourceVersion="+list.Metadata.ResourceVersion, n)
	if err != nil {
		return err
	}
	begin := time.Now()
	if _, err := spread(ctx, clients, n, func(ctx context.Context, c *client, i int) error {
		return makeThing(ctx, c, tenants[i%len(tenants)], fmt.Sprintf("rate-%d", i), "", b.plan.size)
	}); err != nil {
		return err
	}
	made := time.Since(begin)
	if err := wait(); err != nil {
		return err
	}
	b.report.add(s.subject, of, "creates per second, all clients", plainCount, float64(n)/made.Seconds())
	b.report.add(s.subject, of, "events per second to the provider", plainCount, float64(n)/time.Since(begin).Seconds())
	all := n + len(list.Items)
	begin = time.Now()
	if _, err := reader.Call(ctx, http.MethodGet, things, jsonType, nil); err != nil {
		return err
	}
	b.report.addTime(s.subject, of, fmt.Sprintf("first list of %d objects", all), time.Since(begin))
	begin = time.Now()
	if wait, err = count("?watch=1", all); err != nil {
		return err
	}
	if err := wait(); err != nil {
		return err
	}
	b.report.addTime(s.subject, of, fmt.Sprintf("first watch, until %d objects have come", all), time.Since(begin))
	return nil
}

// makeThing creates a thing in a tenant.
func makeThing(ctx context.Context, c *client, t tenant, name, word string, size int) error {
	body, err := customObject(customGroup, name, word, size)
	if err != nil {
		return err
	}
	_, err = c.Call(ctx, http.MethodPost, customsOf(t, customGroup), jsonType, body)
	return err
}
