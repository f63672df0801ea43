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
	"time"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/test/child"
)

// views measures what a provider's view over many tenants costs: the memory of a binding, the
// time from a write in a tenant until the provider has the event, how many events a second it
// gets, and how long a first list, a first watch and the rollout of another schema take.
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
	v := &viewed{bench: b, server: s, clients: clients, tenants: tenants, of: of}
	view, err := viewOf(ctx, clients[0], provider)
	if err != nil {
		return err
	}
	v.things, v.bindings = view+"/apis/"+customGroup+"/v1/things", view+apisPath+"v1alpha2/apibindings"
	if err := v.delay(ctx); err != nil {
		return err
	}
	if err := v.rate(ctx); err != nil {
		return err
	}
	if err := v.first(ctx); err != nil {
		return err
	}
	return v.rollOut(ctx, provider)
}

// A viewed is a view over tenants.
type viewed struct {
	*bench
	server  *server
	clients []*client
	tenants []tenant
	// things and bindings are the URL paths of those of all tenants.
	things, bindings string
	of               string // for the report
}

// rested returns the footprint of the server after it has settled.
func (b *bench) rested(ctx context.Context, s *server) (footprint, error) {
	if err := child.Pause(ctx, b.plan.settle); err != nil {
		return footprint{}, err
	}
	return s.footprint(ctx)
}

// viewOf returns the URL path of the view of a provider over all tenants.
func viewOf(ctx context.Context, c *client, provider tenant) (string, error) {
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
	return u.Path + "/clusters/*", nil
}

// delay measures the time from the start of a creation in a tenant to its event.
func (v *viewed) delay(ctx context.Context) error {
	w, err := startWatchAt(ctx, v.server, v.things)
	if err != nil {
		return err
	}
	defer w.close()
	x, err := v.server.load(ctx, v.clients[:1], v.plan.lists, func(ctx context.Context, c *client, i int) error {
		word := fmt.Sprintf("at-%d.", i)
		if err := v.make(ctx, c, i, word); err != nil {
			return err
		}
		return w.await(word)
	})
	if err != nil {
		return err
	}
	v.report.addTime(v.server.subject, v.of, "create to event, p50", x.percentile(50))
	v.report.addTime(v.server.subject, v.of, "create to event, p99", x.percentile(99))
	v.report.addTime(v.server.subject, v.of, "server CPU of a create with its event", x.each(x.server))
	return nil
}

// make creates a thing in a tenant.
func (v *viewed) make(ctx context.Context, c *client, i int, word string) error {
	body, err := customObject(customGroup, fmt.Sprintf("thing-%d-%d", len(word), i), word, v.plan.size)
	if err != nil {
		return err
	}
	_, err = c.Call(ctx, http.MethodPost, customsOf(v.tenants[i%len(v.tenants)], customGroup), jsonType, body)
	return err
}

// rate measures how many events a second arrive while all clients create objects.
func (v *viewed) rate(ctx context.Context) error {
	listed, revision, err := v.list(ctx, v.things)
	if err != nil {
		return err
	}
	n := v.plan.operations
	events, err := v.count(ctx, v.things+"?watch=1&resourceVersion="+revision, `"ADDED"`, n)
	if err != nil {
		return err
	}
	begin := time.Now()
	if _, err := spread(ctx, v.clients, n, func(ctx context.Context, c *client, i int) error { return v.make(ctx, c, listed+i, "") }); err != nil {
		return err
	}
	made := time.Since(begin)
	if err := events(); err != nil {
		return err
	}
	v.report.add(v.server.subject, v.of, "creates per second, all clients", plainCount, float64(n)/made.Seconds())
	v.report.add(v.server.subject, v.of, "events per second to the provider", plainCount, float64(n)/time.Since(begin).Seconds())
	return nil
}

// first measures how long a list of all objects and a watch from the start take.
func (v *viewed) first(ctx context.Context) error {
	begin := time.Now()
	n, _, err := v.list(ctx, v.things)
	if err != nil {
		return err
	}
	v.report.addTime(v.server.subject, v.of, fmt.Sprintf("first list of %d objects", n), time.Since(begin))
	begin = time.Now()
	events, err := v.count(ctx, v.things+"?watch=1", `"ADDED"`, n)
	if err != nil {
		return err
	}
	if err := events(); err != nil {
		return err
	}
	v.report.addTime(v.server.subject, v.of, fmt.Sprintf("first watch, until %d objects have come", n), time.Since(begin))
	return nil
}

// rollOut gives the export another schema, and measures how long it takes until all bindings have
// it.
func (v *viewed) rollOut(ctx context.Context, provider tenant) error {
	schema, err := apisv1alpha1.FromCustomResourceDefinition(definition(customGroup), "v2")
	if err != nil {
		return err
	}
	if err := post(ctx, v.clients[0], base(provider)+apisPath+"v1alpha1/apiresourceschemas", schema); err != nil {
		return err
	}
	n, revision, err := v.list(ctx, v.bindings)
	if err != nil {
		return err
	}
	changed, err := v.count(ctx, v.bindings+"?watch=1&resourceVersion="+revision, `"`+schema.Name+`"`, n)
	if err != nil {
		return err
	}
	begin := time.Now()
	patch := fmt.Appendf(nil, `{"spec":{"resources":[{"group":%q,"name":"things","schema":%q,"storage":{"crd":{}}}]}}`, customGroup, schema.Name)
	if _, err := v.clients[0].Call(ctx, http.MethodPatch, base(provider)+apisPath+"v1alpha2/apiexports/"+customGroup, jsonType, patch); err != nil {
		return err
	}
	if err := changed(); err != nil {
		return err
	}
	v.report.addTime(v.server.subject, v.of, "another schema, until all bindings have it", time.Since(begin))
	return nil
}

// list returns the number of all objects at a path, and the revision of the list.
func (v *viewed) list(ctx context.Context, path string) (n int, revision string, err error) {
	body, err := v.clients[0].Call(ctx, http.MethodGet, path, jsonType, nil)
	if err != nil {
		return 0, "", err
	}
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Items []json.RawMessage `json:"items"`
	}
	err = json.Unmarshal(body, &list)
	return len(list.Items), list.Metadata.ResourceVersion, err
}

// count begins a watch. The returned function waits until it has delivered a number of events with a
// text.
func (v *viewed) count(ctx context.Context, path, text string, want int) (wait func() error, err error) {
	c, err := child.NewClient(v.server.user)
	if err != nil {
		return nil, err
	}
	body, err := c.Stream(ctx, path)
	if err != nil {
		c.Close()
		return nil, err
	}
	done := make(chan error, 1)
	go func() {
		lines := bufio.NewReaderSize(body, 1<<20)
		for seen := 0; seen < want; {
			line, err := lines.ReadString('\n')
			if err != nil {
				done <- fmt.Errorf("the watch ended after %d of %d objects: %w", seen, want, err)
				return
			}
			if strings.Contains(line, text) {
				seen++
			}
		}
		done <- nil
	}()
	return func() error {
		defer c.Close()
		defer func() { _ = body.Close() }() // nothing more is read
		return <-done
	}, nil
}
