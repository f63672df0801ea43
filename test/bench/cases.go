package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// bench is one run.
type bench struct {
	plan     plan
	short    bool
	encoding encoding
	dir      string
	log      io.Writer
	report   *report
	subjects []subject

	begun  int       // servers started, to give each a directory
	shared []*server // one of each subject, for the cases that leave no trace in another's figures
}

// benchCase is one thing to compare.
type benchCase struct {
	name string
	run  func(ctx context.Context, b *bench) error
}

// cases are run in this order. Memory comes last, as it needs fresh servers.
func cases() []benchCase {
	return []benchCase{
		{"start", starts},
		{"configmaps", configMaps},
		{"list", lists},
		{"workspaces", makeTenants},
		{"footprint", footprints},
	}
}

// fresh starts one server. The caller stops it.
func (b *bench) fresh(ctx context.Context, s subject, controllers bool) (*server, error) {
	b.begun++
	dir := filepath.Join(b.dir, fmt.Sprintf("%s-%d", s.name(), b.begun))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	server, err := s.start(ctx, dir, controllers)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.name(), err)
	}
	return server, nil
}

// servers returns one server of each subject, shared by the cases.
func (b *bench) servers(ctx context.Context) ([]*server, error) {
	for len(b.shared) < len(b.subjects) {
		s, err := b.fresh(ctx, b.subjects[len(b.shared)], true)
		if err != nil {
			return nil, err
		}
		b.shared = append(b.shared, s)
	}
	return b.shared, nil
}

func (b *bench) close() {
	for _, s := range b.shared {
		s.stop()
	}
	b.shared = nil
}

// starts measures from exec to ready, without the stock controller manager.
func starts(ctx context.Context, b *bench) error {
	type started struct{ wall, cpu, memory, goroutines []float64 }
	all := map[string]*started{}
	for range b.plan.starts {
		for _, subject := range b.subjects {
			s, err := b.fresh(ctx, subject, false)
			if err != nil {
				return err
			}
			cpu, err := sumCPU(s.measured)
			var f footprint
			if err == nil {
				f, err = s.footprint(ctx)
			}
			s.stop()
			if err != nil {
				return fmt.Errorf("%s: %w", subject.name(), err)
			}
			x := all[s.subject]
			if x == nil {
				x = &started{}
				all[s.subject] = x
			}
			x.wall, x.cpu = append(x.wall, s.took.Seconds()), append(x.cpu, cpu.Seconds())
			x.memory, x.goroutines = append(x.memory, f.memory), append(x.goroutines, f.goroutines)
		}
	}
	for name, x := range all {
		b.report.add(name, "start, empty", "exec to ready", seconds, median(x.wall))
		b.report.add(name, "start, empty", "CPU until ready", seconds, median(x.cpu))
		b.report.add(name, "start, empty", "memory when ready", bytesUnit, median(x.memory))
		b.report.add(name, "start, empty", "goroutines", plainCount, median(x.goroutines))
	}
	return nil
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// side is one server in a case, with its clients.
type side struct {
	*server
	clients []*client
}

// sides starts what is needed and connects all clients. The caller calls the
// function, which closes them.
func (b *bench) sides(ctx context.Context) ([]*side, func(), error) {
	servers, err := b.servers(ctx)
	if err != nil {
		return nil, nil, err
	}
	var out []*side
	done := func() {
		for _, s := range out {
			closeAll(s.clients)
		}
	}
	for _, s := range servers {
		clients, err := connect(ctx, s.user, b.plan.clients)
		if err != nil {
			done()
			return nil, nil, fmt.Errorf("%s: %w", s.subject, err)
		}
		out = append(out, &side{s, clients})
	}
	return out, done, nil
}

// fill makes a tenant with the config maps that will be listed, and proves
// that a list returns all of them.
func (b *bench) fill(ctx context.Context, s *side, name string) (tenant, error) {
	c := s.clients[0]
	t, err := s.newTenant(ctx, c, name)
	if err != nil {
		return t, err
	}
	for i := range b.plan.listed {
		if err := b.create(ctx, c, t.configMaps, fmt.Sprintf("listed-%d", i)); err != nil {
			return t, err
		}
	}
	for _, url := range []string{t.configMaps, t.all} {
		raw, err := c.call(ctx, http.MethodGet, url, b.encoding.media, nil)
		if err != nil {
			return t, err
		}
		var list corev1.ConfigMapList
		if err := runtime.DecodeInto(scheme.Codecs.UniversalDecoder(corev1.SchemeGroupVersion), raw, &list); err != nil {
			return t, fmt.Errorf("list %s: %w", url, err)
		}
		got := 0
		for _, m := range list.Items {
			if m.Labels["app"] == "bench" { // not those that the system makes
				got++
			}
		}
		if got != b.plan.listed {
			return t, fmt.Errorf("list %s has %d of our config maps, want %d", url, got, b.plan.listed)
		}
	}
	return t, nil
}

// create makes a config map.
func (b *bench) create(ctx context.Context, c *client, collection, name string) error {
	body, err := b.encoding.configMap(name, "created", b.plan.size)
	if err != nil {
		return err
	}
	_, err = c.call(ctx, http.MethodPost, collection, b.encoding.media, body)
	return err
}

// update replaces a config map by one whose value begins with the given word.
func (b *bench) update(ctx context.Context, c *client, object, word string) error {
	body, err := b.encoding.configMap(path.Base(object), word, b.plan.size)
	if err != nil {
		return err
	}
	_, err = c.call(ctx, http.MethodPut, object, b.encoding.media, body)
	return err
}

// configMaps measures each verb with all clients in one tenant, next to
// another one that is listed.
func configMaps(ctx context.Context, b *bench) error {
	sides, done, err := b.sides(ctx)
	if err != nil {
		return err
	}
	defer done()
	samples := map[string][]sample{}
	for round := range b.plan.rounds {
		for _, s := range sides {
			got, err := b.verbs(ctx, s, round)
			if err != nil {
				return fmt.Errorf("%s: %w", s.subject, err)
			}
			if samples[s.subject] == nil {
				samples[s.subject] = got
				continue
			}
			for i := range got {
				samples[s.subject][i].merge(got[i])
			}
		}
	}
	for _, s := range sides {
		var sum time.Duration
		for i, verb := range verbs() {
			x := &samples[s.subject][i]
			b.reportLoad(s.subject, "config map "+verb.name, x)
			sum += x.each(x.server)
		}
		b.report.addTime(s.subject, "config map, mean of all", "server CPU each", sum/time.Duration(len(verbs())))
	}
	return nil
}

func (b *bench) reportLoad(subject, of string, x *sample) {
	of = fmt.Sprintf("%s, %d clients", of, b.plan.clients)
	b.report.add(subject, of, "rate", perSecond, x.rate())
	b.report.addTime(subject, of, "p50", x.percentile(50))
	b.report.addTime(subject, of, "p99", x.percentile(99))
	b.report.addTime(subject, of, "server CPU each", x.each(x.server))
	b.report.addTime(subject, of, "(client CPU each)", x.each(x.client))
}

// verb is one kind of operation.
type verb struct {
	name string
	do   func(ctx context.Context, b *bench, c *client, t target) error
}

// target is what a verb is done to; collections are URL paths.
type target struct {
	collection string // where objects are written
	listed     string // the collection that is listed
	name       string
}

func (t target) object() string { return t.collection + "/" + t.name }

func verbs() []verb {
	return []verb{
		{"create", func(ctx context.Context, b *bench, c *client, t target) error {
			return b.create(ctx, c, t.collection, t.name)
		}},
		{"get", func(ctx context.Context, b *bench, c *client, t target) error {
			_, err := c.call(ctx, http.MethodGet, t.object(), b.encoding.media, nil)
			return err
		}},
		{"list", func(ctx context.Context, b *bench, c *client, t target) error {
			_, err := c.call(ctx, http.MethodGet, t.listed, b.encoding.media, nil)
			return err
		}},
		{"update", func(ctx context.Context, b *bench, c *client, t target) error {
			return b.update(ctx, c, t.object(), "updated")
		}},
		{"delete", func(ctx context.Context, b *bench, c *client, t target) error {
			_, err := c.call(ctx, http.MethodDelete, t.object(), b.encoding.media, nil)
			return err
		}},
	}
}

// verbs runs one round on one side, in tenants of its own. A few operations
// that are not counted come first.
func (b *bench) verbs(ctx context.Context, s *side, round int) ([]sample, error) {
	listed, err := b.fill(ctx, s, fmt.Sprintf("listed-%d", round))
	if err != nil {
		return nil, err
	}
	written, err := s.newTenant(ctx, s.clients[0], fmt.Sprintf("written-%d", round))
	if err != nil {
		return nil, err
	}
	var out []sample
	for _, warm := range []bool{true, false} {
		n, prefix := b.plan.operations/b.plan.rounds, "object"
		if warm {
			n, prefix = max(n/20, len(s.clients)), "warm"
		}
		for _, v := range verbs() {
			x, err := s.load(ctx, s.clients, n, func(ctx context.Context, c *client, i int) error {
				return v.do(ctx, b, c, target{written.configMaps, listed.configMaps, fmt.Sprintf("%s-%d", prefix, i)})
			})
			if err != nil {
				return nil, err
			}
			if !warm {
				out = append(out, x)
			}
		}
	}
	return out, nil
}
