package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
		{"customs", customs},
		{"definitions", definitions},
		{"list", lists},
		{"workspaces", makeTenants},
		{"watches", watches},
		{"footprint", footprints},
		{"trees", trees},
		{"crowd", crowds},
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
	t, err := s.newTenant(ctx, s.clients[0], name)
	if err != nil {
		return t, err
	}
	return t, b.populate(ctx, s.clients[0], b.configMap(), t)
}

// populate makes the objects that will be listed.
func (b *bench) populate(ctx context.Context, c *client, k kind, t tenant) error {
	collection, listed := k.in(t)
	for i := range b.plan.listed {
		if err := k.create(ctx, c, collection, fmt.Sprintf("listed-%d", i)); err != nil {
			return err
		}
	}
	raw, err := c.call(ctx, http.MethodGet, listed, jsonType, nil)
	if err != nil {
		return err
	}
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal(raw, &list); err != nil {
		return fmt.Errorf("list %s: %w", listed, err)
	}
	got := 0
	for _, o := range list.Items {
		if o.Labels["app"] == "bench" { // not those that the system makes
			got++
		}
	}
	if got != b.plan.listed {
		return fmt.Errorf("list %s has %d of our objects, want %d", listed, got, b.plan.listed)
	}
	return nil
}

// kind is what operations are done to.
type kind struct {
	name  string
	media string
	// replace is the method of updates.
	replace string
	// body is an object with a value that begins with the given word.
	body func(name, word string) ([]byte, error)
	// prepare makes ready a tenant that is going to have such objects; may be nil.
	prepare func(ctx context.Context, c *client, t tenant) error
	// in is the collection in which the tenants that are written have it, and from
	// where it is listed.
	in func(tenant) (collection, all string)
}

func (b *bench) configMap() kind {
	return kind{
		name: "config map", media: b.encoding.media, replace: http.MethodPut,
		body: func(name, word string) ([]byte, error) { return b.encoding.configMap(name, word, b.plan.size) },
		in:   func(t tenant) (string, string) { return t.configMaps, t.configMaps },
	}
}

func (k kind) create(ctx context.Context, c *client, collection, name string) error {
	body, err := k.body(name, "created")
	if err != nil {
		return err
	}
	_, err = c.call(ctx, http.MethodPost, collection, k.media, body)
	return err
}

// update replaces an object by one whose value begins with the given word.
func (k kind) update(ctx context.Context, c *client, object, word string) error {
	body, err := k.body(path.Base(object), word)
	if err != nil {
		return err
	}
	_, err = c.call(ctx, k.replace, object, k.media, body)
	return err
}

// create makes a config map.
func (b *bench) create(ctx context.Context, c *client, collection, name string) error {
	return b.configMap().create(ctx, c, collection, name)
}

// update replaces a config map by one whose value begins with the given word.
func (b *bench) update(ctx context.Context, c *client, object, word string) error {
	return b.configMap().update(ctx, c, object, word)
}

// configMaps measures each verb with all clients in one tenant, next to
// another one that is listed.
func configMaps(ctx context.Context, b *bench) error { return b.operations(ctx, b.configMap()) }

// operations measures each verb on objects of a kind.
func (b *bench) operations(ctx context.Context, k kind) error {
	sides, done, err := b.sides(ctx)
	if err != nil {
		return err
	}
	defer done()
	samples := map[string][]sample{}
	for round := range b.plan.rounds {
		for _, s := range sides {
			got, err := b.verbs(ctx, s, k, round)
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
			b.reportLoad(s.subject, k.name+" "+verb.name, x)
			sum += x.each(x.server)
		}
		b.report.addTime(s.subject, k.name+", mean of all", "server CPU each", sum/time.Duration(len(verbs())))
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
	do   func(ctx context.Context, c *client, t target) error
}

// target is what a verb is done to; collections are URL paths.
type target struct {
	kind       kind
	collection string // where objects are written
	listed     string // the collection that is listed
	name       string
}

func (t target) object() string { return t.collection + "/" + t.name }

func verbs() []verb {
	return []verb{
		{"create", func(ctx context.Context, c *client, t target) error {
			return t.kind.create(ctx, c, t.collection, t.name)
		}},
		{"get", func(ctx context.Context, c *client, t target) error {
			_, err := c.call(ctx, http.MethodGet, t.object(), t.kind.media, nil)
			return err
		}},
		{"list", func(ctx context.Context, c *client, t target) error {
			_, err := c.call(ctx, http.MethodGet, t.listed, t.kind.media, nil)
			return err
		}},
		{"update", func(ctx context.Context, c *client, t target) error {
			return t.kind.update(ctx, c, t.object(), "updated")
		}},
		{"delete", func(ctx context.Context, c *client, t target) error {
			_, err := c.call(ctx, http.MethodDelete, t.object(), t.kind.media, nil)
			return err
		}},
	}
}

// verbs runs one round on one side, in tenants of its own. A few operations
// that are not counted come first.
func (b *bench) verbs(ctx context.Context, s *side, k kind, round int) ([]sample, error) {
	var tenants [2]tenant
	for i, role := range []string{"listed", "written"} {
		var err error
		name := fmt.Sprintf("%s-%s-%d", role, strings.ReplaceAll(k.name, " ", ""), round)
		if tenants[i], err = s.newTenant(ctx, s.clients[0], name); err != nil {
			return nil, err
		}
		if k.prepare != nil {
			if err := k.prepare(ctx, s.clients[0], tenants[i]); err != nil {
				return nil, err
			}
		}
	}
	if err := b.populate(ctx, s.clients[0], k, tenants[0]); err != nil {
		return nil, err
	}
	_, listed := k.in(tenants[0])
	collection, _ := k.in(tenants[1])
	var out []sample
	for _, warm := range []bool{true, false} {
		n, prefix := b.plan.operations/b.plan.rounds, "object"
		if warm {
			n, prefix = max(n/20, len(s.clients)), "warm"
		}
		for _, v := range verbs() {
			x, err := s.load(ctx, s.clients, n, func(ctx context.Context, c *client, i int) error {
				return v.do(ctx, c, target{k, collection, listed, fmt.Sprintf("%s-%d", prefix, i)})
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
